"""RES: add, part by part, what was saved at the branching point.

F ← F + F_saved,    b ← b + b_saved
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from normlens.components import Branch, Norm
from normlens.decomposition.norm import FrozenNorm
from normlens.decomposition.parts import Parts
from normlens.decomposition.projection import FrozenProjection
from normlens.decomposition.scored import Scored


@dataclass(frozen=True)
class FrozenBranch:
    """A branching point, where vectors are saved for a residual connection.

    They are saved behind the steps in `through`; most branches have none, and save what arrives.
    """

    through: tuple[FrozenNorm | FrozenProjection, ...] = ()

    @classmethod
    def at(cls, branch: Branch, y: Tensor) -> FrozenBranch:
        """The branch at the vectors `y` (b, i, d)."""
        steps: list[FrozenNorm | FrozenProjection] = []
        for step in branch.through:
            place = FrozenNorm.at(step, y) if isinstance(step, Norm) else FrozenProjection(step)
            steps.append(place)
            y = place.apply(y)
        return cls(tuple(steps))

    def linear(self, v: Tensor) -> Tensor:
        """What is saved of vectors (…, i, d), without any bias."""
        for step in self.through:
            v = step.linear(v)
        return v

    def adjoint(self, g: Tensor) -> Tensor:
        """The gradient before the branch of g (…, i, d) at what is saved."""
        return self.score(g).arriving

    def score(self, g: Tensor) -> Scored:
        """What is saved hands the score on to the branch, but for biases."""
        unowned: Tensor | None = None
        for step in reversed(self.through):
            scored = step.score(g)
            g = scored.arriving
            if scored.unowned is not None:
                unowned = scored.unowned if unowned is None else unowned + scored.unowned
        return Scored(g, unowned=unowned)

    def apply(self, y: Tensor) -> Tensor:
        """What is saved of the real vectors, biases included."""
        for step in self.through:
            y = step.apply(y)
        return y

    def from_token(self, first: int) -> FrozenBranch:
        """The same for the tokens from `first` on."""
        return FrozenBranch(tuple(step.from_token(first) for step in self.through))

    def on_parts(self, parts: Parts) -> Parts:
        """The parts that are saved."""
        for step in self.through:
            parts = step.on_parts(parts)
        return parts


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
