"""The least memory that the feed-forward stage can work with, known before anything runs.

A limit below it would not be kept, or would be kept by tiles of a few pairs: each reads all of
W_down, so that a text of some hundred tokens would take hours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from normlens.components import Layer
from normlens.decomposition.plan import Plan, Shape, choose_plan, player_memory
from normlens.decomposition.rules import SHAPLEY
from normlens.errors import MemoryLimitError
from normlens.scopes import components_of

#: Rows of the smallest tile that makes reading W_down worth it.
_ROWS = 16
_UNITS = (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10))


def least_memory(shape: Shape, rule: str, scopes: int = 1) -> int:
    """Bytes of the smallest tile that comes to an end in good time.

    `scopes` counts those from the feed-forward block on.
    """
    if rule == SHAPLEY:
        return player_memory(shape, scopes)
    usual = choose_plan(shape, None)
    # Matrices are formed anew for every block of sources, so there is one block.
    sources = usual.sources if usual.method == "matrices" else min(usual.sources, _ROWS)
    return Plan(usual.method, sources, 1).memory(shape)


def check_limit(
    limit: int,
    layers: Iterable[Layer],
    lengths: Sequence[int],
    scopes: Iterable[str],
    rule: str,
    itemsize: int,
) -> None:
    """Raise unless a memory limit suffices for sequences of these lengths.

    Without a scope behind the feed-forward block there are no tiles.
    """
    behind = sum("FF" in components_of(scope) for scope in scopes)
    if not behind:
        return
    needs = [
        (least_memory(_shape(layer, n, itemsize), rule, behind), n)
        for layer in layers
        if layer.feed_forward is not None
        for n in set(lengths)
    ]
    least, n = max(needs, default=(0, 0))
    if limit < least:
        raise MemoryLimitError(
            f"the memory limit of {_size(limit)} is too low for {n} tokens: the feed-forward block "
            f"needs {_size(least)}; give that much (or leave the limit out), a shorter text, "
            "or only scopes before the block"
        )


def _shape(layer: Layer, n: int, itemsize: int) -> Shape:
    ff = layer.feed_forward
    assert ff is not None
    d, m = ff.up.weight.shape
    projections = 1 if ff.gate is None else 2
    return Shape(n, layer.reach.pairs(n), d, m, layer.attention.heads, projections, itemsize)


def _size(count: int) -> str:
    """Bytes as `parse_bytes` reads them, rounded up so that what is shown is enough."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{math.ceil(10 * count / size) / 10:g}{unit}"
    return f"{count} bytes"
