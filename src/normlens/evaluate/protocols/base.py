"""The interface of a protocol: how a text is changed, and what that says of a method's scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from normlens.evaluate.protocols.orders import MOST, ordered, seeded_numbers
from normlens.evaluate.questions import Question
from normlens.evaluate.scoring import Scored
from normlens.evaluate.variants import Variant

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True, eq=False)
class Example:
    """A text put to the test: its question, and the word that must decide it, if any."""

    question: Question
    seed: int = 0
    evidence: str | None = None

    @cached_property
    def ordinary(self) -> NDArray[np.intp]:
        """The places of the tokens that may be changed; special tokens never are."""
        return np.array(self.question.ordinary, np.intp)

    def numbers(self, purpose: str, count: int) -> NDArray[np.uint64]:
        """Random numbers that belong to this text; the same for every method."""
        return seeded_numbers(self.seed, self.question.encoded.ids, purpose, count)

    def by_importance(self, scores: NDArray[np.float64], first: str) -> NDArray[np.intp]:
        """The places of ordinary tokens, the most or the least important first."""
        places = self.ordinary
        return places[ordered(scores[places], self.numbers("ties", len(places)), first)]


@dataclass(frozen=True)
class Removal:
    """One variant of a text, some of whose ordinary tokens are replaced or left out."""

    first: str  # which tokens go first, the most or the least important
    share: float  # K, as the protocol counts it: what goes or, for sufficiency, what stays
    removed: int  # how many tokens are gone
    variant: Variant


class Protocol(ABC):
    """Turns a method's scores (one per token) into a number that says how true they are."""

    name: ClassVar[str]
    #: the kind of question that it is about (`Question.kind`)
    kind: ClassVar[str]
    #: it gives one value for each of these
    firsts: ClassVar[tuple[str, ...]] = (MOST,)

    @classmethod
    @abstractmethod
    def on(cls, lens: Lens) -> Protocol:
        """The protocol for a model; raises an `InputError` where the model lacks what it needs."""

    @abstractmethod
    def removals(self, example: Example, scores: NDArray[np.float64]) -> list[Removal]:
        """The variants whose scores the values need."""

    @abstractmethod
    def values(
        self,
        example: Example,
        scores: NDArray[np.float64],
        intact: Scored,
        removals: Sequence[Removal],
        outcomes: Scored,
    ) -> dict[str, float | None]:
        """The value for each of `firsts`; None where the text says nothing about the scores.

        `intact` is what the model says of the text as it is, `outcomes` what it says of each
        removal.
        """
