"""Sufficiency: what the predicted class loses when nothing but the most important tokens stays."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.evaluate.protocols.deletions import BINS, Deletion, rationale
from normlens.evaluate.protocols.orders import MOST


@dataclass(frozen=True)
class Sufficiency(Deletion):
    """``mean_K [p(ŷ|x) − p(ŷ|the K most important tokens alone)]``; smaller is better.

    DeYoung et al. 2020 (ERASER), section 4. All other ordinary tokens are left out; a removal's
    share is the share that stays, K = 1, 5, 10, 20, 50 %.
    """

    name = "sufficiency"
    firsts = (MOST,)
    percents = BINS

    def removed(self, order: list[int], percent: int) -> list[int]:
        return order[rationale(percent, len(order)) :]
