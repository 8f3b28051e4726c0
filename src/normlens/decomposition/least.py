"""The least memory limit of the feed-forward stage, checked before anything runs.

A lower limit would be exceeded, or would force tiles of a few pairs, each of which reads all of
W_down: a text of some hundred tokens would take hours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from normlens.components import Layer
from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.costs.tiles import least_memory
from normlens.decomposition.costs.vectors import VectorSizes
from normlens.decomposition.source_parts import source_memory
from normlens.errors import MemoryLimitError
from normlens.scopes import components_of

_UNITS = (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10))


def check_limit(
    limit: int,
    layers: Iterable[Layer],
    lengths: Sequence[int],
    scopes: Iterable[str],
    rule: str,
    itemsize: int,
    others: Sequence[int] = (),
) -> None:
    """Raise unless a memory limit suffices for sequences of these lengths.

    `others` are the lengths of the other sequences that layers read, one for each. Without a scope
    behind the feed-forward block there are no tiles, so any limit does.
    """
    asked = [scope for scope in scopes if "FF" in components_of(scope)]
    needs = []
    for layer in layers:
        behind = sum(scope in layer.scopes for scope in asked)
        if layer.feed_forward is None or not behind:
            continue
        if layer.by_source:
            needs += [(source_memory(layer, 1, n, itemsize), n) for n in lengths]
            continue
        for attention in layer.attentions:
            ff, heads = layer.feed_forward, attention.heads
            sizes: set[tuple[int, int | None]] = {(n, None) for n in lengths}
            if attention.source is not None:
                sizes = {(n, k) for n, k in zip(lengths, others, strict=False)}
            for n, sources in sizes:
                shape = Shape.of_block(ff, heads, layer.reach, n, itemsize, sources)
                needs.append((least_memory(shape, rule, behind), n))
    least, n = max(needs, default=(0, 0))
    if limit < least:
        raise MemoryLimitError(
            f"the memory limit of {_size(limit)} is too low for {n} tokens: the feed-forward block "
            f"needs {_size(least)}; give that much (or leave the limit out), a shorter text, "
            "or only scopes before the block"
        )


def check_vectors_limit(
    limit: int, layers: Sequence[Layer], lengths: Sequence[int], itemsize: int
) -> None:
    """Raise unless a memory limit suffices for whole vectors in sequences of these lengths."""
    n = max(lengths, default=1)
    least = VectorSizes.of(layers, 1, n, itemsize).least
    if limit < least:
        raise MemoryLimitError(
            f"the memory limit of {_size(limit)} is too low for {n} tokens: the vectors of one "
            f"input token need {_size(least)}; give that much (or leave the limit out), or a "
            "shorter text"
        )


def _size(count: int) -> str:
    """Bytes in the form that `parse_bytes` reads, rounded up so that the size shown is enough."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{math.ceil(10 * count / size) / 10:g}{unit}"
    return f"{count} bytes"
