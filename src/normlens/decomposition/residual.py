"""RES: add, part by part, what was saved at the branching point.

F ← F + F_saved,    b ← b + b_saved
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from normlens.decomposition.parts import Parts


@dataclass(frozen=True)
class FrozenBranch:
    """A branching point, where vectors are saved for a residual connection."""


@dataclass(frozen=True)
class FrozenResidual:
    """A residual connection; nothing about it depends on the input."""

    unowned: None = None

    def linear(self, v: Tensor, saved: Tensor) -> Tensor:
        """``v + saved``; the adjoint hands g to both."""
        return v + saved

    def on_parts(self, parts: Parts, saved: Parts) -> Parts:
        """Sum of the parts that arrive and of those that were saved."""
        if {group.source for group in parts.groups} & {group.source for group in saved.groups}:
            raise ValueError(
                "a residual before the feed-forward block must branch where its sources are not "
                "mixed yet"
            )
        mixed = [m for m in (parts.mixed, saved.mixed) if m is not None]
        return Parts(
            parts.own + saved.own,
            parts.bias.add(saved.bias),
            None if not mixed else mixed[0] if len(mixed) == 1 else mixed[0] + mixed[1],
            (*saved.groups, *parts.groups),
        )
