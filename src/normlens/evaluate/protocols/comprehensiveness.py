"""Comprehensiveness: what the predicted class loses without the most important tokens."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.evaluate.protocols.deletions import BINS, Deletion, rationale
from normlens.evaluate.protocols.orders import MOST


@dataclass(frozen=True)
class Comprehensiveness(Deletion):
    """``mean_K [p(ŷ|x) − p(ŷ|x without the K most important tokens)]``; larger is better.

    DeYoung et al. 2020 (ERASER), section 4: the tokens are left out, K = 1, 5, 10, 20, 50 %.
    """

    name = "comprehensiveness"
    firsts = (MOST,)
    percents = BINS

    def removed(self, order: list[int], percent: int) -> list[int]:
        return order[: rationale(percent, len(order))]
