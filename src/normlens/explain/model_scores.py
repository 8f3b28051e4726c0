"""Scores as the model itself returns them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class ModelScores:
    """What the model returned: scores or vectors of sequences, of all positions, or of some."""

    values: Tensor  # (b, c) or (b, position, c)
    places: list[int] | None  # the positions that are there; None: all of them

    def of(self, b: int, position: int | None) -> Tensor:
        """The scores of one sequence, at one of its positions where it has several."""
        if self.values.dim() == 2:
            return self.values[b]
        assert position is not None
        return self.values[b, position if self.places is None else self.places.index(position)]


def chooses_positions(model: Any) -> bool:
    """Whether a model can be asked for the scores of some positions only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters
