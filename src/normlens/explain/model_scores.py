"""Scores as the model itself returns them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ModelScores:
    """What the model returned: scores or vectors of sequences, of all positions, or of some."""

    values: Tensor  # (b, c) or (b, position, c)
    places: list[int] | None  # the positions that are there; None: all of them

    @classmethod
    def of_output(cls, output: Any, places: list[int] | None) -> ModelScores:
        """What a model with a head returned."""
        logits = getattr(output, "logits", None)
        return cls(output.prediction_logits if logits is None else logits, places)

    def of(self, b: int, position: int | None) -> Tensor:
        """The scores of one sequence, at one of its positions where it has several."""
        if self.values.dim() == 2:
            return self.values[b]
        assert position is not None
        return self.values[b, position if self.places is None else self.places.index(position)]

    def of_all(self, positions: Sequence[int | None]) -> Tensor:
        """The scores (b, c) of every sequence, each at one of its positions."""
        if self.values.dim() == 2:
            return self.values
        places = [
            p if self.places is None or p is None else self.places.index(p) for p in positions
        ]
        rows = torch.arange(len(places), device=self.values.device)
        return self.values[rows, torch.tensor(places, device=self.values.device)]


def chooses_positions(model: Any) -> bool:
    """Whether a model can be asked for the scores of some positions only.

    A classifier of sequences may take the argument, too, and look for its last token among all.
    """
    kinds = [kind.__name__ for kind in type(model).__mro__]
    of_sequences = any(name.endswith("ForSequenceClassification") for name in kinds)
    return not of_sequences and "logits_to_keep" in inspect.signature(model.forward).parameters


def ask_for_places(
    model: Any, inputs: dict[str, Any], positions: Iterable[int | None]
) -> list[int] | None:
    """Ask a model for the scores of some positions only, if it can choose; returns which."""
    places = sorted({position for position in positions if position is not None})
    if not places or not chooses_positions(model):
        return None
    inputs["logits_to_keep"] = torch.tensor(places, device=inputs["input_ids"].device)
    return places
