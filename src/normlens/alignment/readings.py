"""Scores that links are read from: a map of a layer, of a head, or contributions to logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Reading:
    """Scores of one kind, (layer, target, source of the encoder)."""

    scope: str
    head: int | None  # None: all heads together
    layers: Sequence[int | None]  # of the first axis; None: the whole model
    ways: Sequence[str]
    scores: NDArray[np.floating]
