"""The steps behind the feed-forward block that the kernels support, and the sums they keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normlens.components import Norm
from normlens.decomposition.feedforward_job import AddBypass, FeedForwardJob, Normalise
from normlens.decomposition.parts import Factors


@dataclass(frozen=True)
class Tail:
    """The steps behind the block, in an order that the kernels support: RES LN, RES, LN RES, LN."""

    bypass: AddBypass | None
    normalise: Normalise | None
    norm_first: bool

    @property
    def norm(self) -> Norm | None:
        return None if self.normalise is None else self.normalise.step.norm

    @property
    def factors(self) -> Factors | None:
        """The bypassed parts; None where only the diagonal is bypassed."""
        return None if self.bypass is None else self.bypass.factors


def is_supported(kinds: Sequence[type | str]) -> bool:
    """Whether the kernels support a tail of these kinds of steps: at most one of each."""
    return len(kinds) <= 2 and len(set(kinds)) == len(kinds)


def tail_of(job: FeedForwardJob) -> Tail | None:
    """The job's tail, or None if the kernels do not support it."""
    kinds = [type(step) for step in job.tail]
    if not is_supported(kinds):
        return None
    bypass = next((step for step in job.tail if isinstance(step, AddBypass)), None)
    normalise = next((step for step in job.tail if isinstance(step, Normalise)), None)
    tail = Tail(bypass, normalise, bool(kinds) and kinds[0] is Normalise)
    if tail.factors is not None and tail.factors.weights is not job.factors.weights:
        return None  # the kernels read one set of weights for both
    return tail


@dataclass(frozen=True)
class Slots:
    """The slot of each sum that a kernel keeps; −1: not kept.

    Slot 0 is the pair's largest weight, 1 is Σ v² and 2 is Σ v just behind the block.
    """

    count: int
    ordinary: int = -1
    normed: int = -1  # Σ (γv)²
    mean: int = -1  # Σ v
    cross: int = -1  # Σ γ²v
    added: int = -1  # Σ u², behind the residual
    added_cross: int = -1  # Σ γu, if a norm stood before it

    @classmethod
    def of(cls, job: FeedForwardJob, tail: Tail) -> Slots:
        """The slots of the sums that a job's norms follow from."""
        norm = tail.norm
        return cls.for_steps(
            ordinary=job.ordinary is not None,
            normed=norm is not None,
            centred=norm is not None and norm.centred,
            bypassed=tail.bypass is not None,
            norm_first=tail.norm_first,
        )

    @classmethod
    def for_steps(
        cls, *, ordinary: bool, normed: bool, centred: bool, bypassed: bool, norm_first: bool
    ) -> Slots:
        """The slots for a tail that consists of these steps."""
        names = ["ordinary"] if ordinary else []
        if normed:
            names += ["normed", *(["mean", "cross"] if centred else [])]
        if bypassed:
            names.append("added")
            if normed and norm_first and centred:
                names.append("added_cross")
        return cls(3 + len(names), **{name: 3 + place for place, name in enumerate(names)})

    @property
    def constants(self) -> dict[str, Any]:
        """The slots as constants of a kernel."""
        return {
            "SLOTS": self.count,
            "ORDINARY": self.ordinary,
            "NORMED": self.normed,
            "NORMED_MEAN": self.mean,
            "NORMED_CROSS": self.cross,
            "ADDED": self.added,
            "ADDED_CROSS": self.added_cross,
        }
