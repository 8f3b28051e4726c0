"""Norms behind steps that tiles and kernels do not know: parts as vectors, some sources at a time.

Several feed-forward blocks, or a projection behind one, are passed by every part F_i(x_j) itself
(`Layer.by_source`): n² · d numbers, of which a memory limit holds those of a few sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from normlens.decomposition.frozen import FrozenLayer
from normlens.decomposition.memory import DEFAULT_LIMIT
from normlens.decomposition.parts import Bias, Parts
from normlens.decomposition.source_parts import source_memory, source_parts, unowned_bias
from normlens.decomposition.vectors import Sources, WholeNorms


def norms_by_source(
    frozen: FrozenLayer, since: int, last: int, limit: int | None
) -> Iterator[tuple[int, Parts, Tensor]]:
    """Sums of the parts, and their norms (b, i, j), behind each component from `since` to `last`.

    Sums are those of the vectors whose norms were taken; there are no factors.
    """
    frozen = replace(frozen, steps=frozen.steps[: last + 1])
    taken: dict[int, WholeNorms] = {}
    b, n, _ = frozen.x.shape
    at_once = sources_at_once(source_memory(frozen.layer, b, n, frozen.x.itemsize), n, limit)
    for first in range(0, n, at_once):

        def take(step: int, parts: Tensor, first: int = first) -> None:
            if step < since:
                return
            if step not in taken:
                taken[step] = WholeNorms.empty(frozen.x, width=parts.shape[-1])
            taken[step].add(Sources(first, 0, parts))

        source_parts(frozen, first, min(first + at_once, n), take)
    biases: dict[int, Tensor] = {}
    unowned_bias(frozen, biases.__setitem__)
    for step, whole in taken.items():
        sums = Parts(whole.own, Bias.dense(biases[step]), whole.total - whole.own)
        yield step, sums, whole.norms


def sources_at_once(one: int, n: int, limit: int | None) -> int:
    """How many of n sources pass together, where each takes `one` byte count on its way."""
    return max(1, min(n, (DEFAULT_LIMIT if limit is None else limit) // one))
