"""Deletions: ERASER's comprehensiveness and sufficiency share how tokens are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normlens.evaluate.protocols.base import Example
from normlens.evaluate.protocols.drops import PROBABILITY, Drops
from normlens.evaluate.questions import CLASSES
from normlens.evaluate.variants import Variant

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Shares of the tokens that are taken as the rationale, in percent; at least one token.
BINS = (1, 5, 10, 20, 50)


@dataclass(frozen=True)
class Deletion(Drops):
    """Drops as ordinary tokens are left out of the text."""

    kind = CLASSES
    reads = PROBABILITY

    @classmethod
    def on(cls, lens: Lens) -> Deletion:
        return cls()

    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        return example.question.without(places)

    def says_something(self, example: Example) -> bool:
        """Whether a token is left to the model when one goes."""
        return len(example.ordinary) > 0 and len(example.question) > 1


def rationale(percent: int, n: int) -> int:
    """How many of n tokens a bin takes."""
    return min(n, max(1, percent * n // 100))
