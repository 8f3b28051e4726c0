"""Drops: how far the model's answer falls as a text loses its tokens, share by share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from normlens.evaluate.protocols.base import Example, Protocol, Removal
from normlens.evaluate.protocols.orders import LEAST, MOST
from normlens.evaluate.scoring import Scored
from normlens.evaluate.variants import Variant

#: What falls: a field of `Scored`.
PROBABILITY, SCORE = "probability", "score"


class Drops(Protocol):
    """``mean_K [s(x) − s(x without K % of its ordinary tokens)]``."""

    firsts: ClassVar[tuple[str, ...]] = (MOST, LEAST)
    reads: ClassVar[str]
    percents: ClassVar[tuple[int, ...]] = tuple(range(0, 100, 10))

    @abstractmethod
    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        """The text without the tokens at `places`, or with others in their stead."""

    def removed(self, order: list[int], percent: int) -> list[int]:
        """Which of the tokens, given in the order of importance, go: the first ⌊K·n⌋ of n."""
        return order[: percent * len(order) // 100]

    def says_something(self, example: Example) -> bool:
        """Whether there is anything to remove."""
        return len(example.ordinary) > 0

    def removals(self, example: Example, scores: NDArray[np.float64]) -> list[Removal]:
        if not self.says_something(example):
            return []
        made = []
        for first in self.firsts:
            order = example.by_importance(scores, first).tolist()
            for percent in self.percents:
                # In the order of the text, so that one set of tokens is one variant.
                places = sorted(self.removed(order, percent))
                variant = self.changed(example, places)
                made.append(Removal(first, percent / 100, len(places), variant))
        return made

    def values(
        self,
        example: Example,
        scores: NDArray[np.float64],
        intact: Scored,
        removals: Sequence[Removal],
        outcomes: Scored,
    ) -> dict[str, float | None]:
        if not removals:
            return dict.fromkeys(self.firsts)
        drops = getattr(intact, self.reads)[0] - getattr(outcomes, self.reads)
        firsts = np.array([removal.first for removal in removals])
        return {first: float(drops[firsts == first].mean()) for first in self.firsts}
