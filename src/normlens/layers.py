"""Layers for people to read: a few of many, and their numbers as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from normlens.wording import listed


def thinned(layers: Sequence[int], most: int) -> list[int]:
    """At most `most` layers, evenly spread, with the first and (from two on) the last."""
    last = len(layers) - 1
    if last < most:
        return list(layers)
    return [layers[round(k * last / max(1, most - 1))] for k in range(most)]


def layers_in_words(layers: Iterable[int]) -> str:
    """Numbers of layers as text: ``layer 4``, ``layers 0–2``, ``layers 3–7 and 9``."""
    numbers = sorted(set(layers))
    runs = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        ends = [layer for _, layer in run]
        runs.append(str(ends[0]) if len(ends) == 1 else f"{ends[0]}–{ends[-1]}")
    return f"layer{'s' * (len(numbers) > 1)} {listed(runs)}"
