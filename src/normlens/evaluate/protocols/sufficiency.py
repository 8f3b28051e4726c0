"""Sufficiency: what the predicted class loses when nothing but the most important tokens stays."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.evaluate.protocols.deletions import BINS, Deletion, rationale
from normlens.evaluate.protocols.orders import LEAST


@dataclass(frozen=True)
class Sufficiency(Deletion):
    """``mean_K [p(ŷ|x) − p(ŷ|the K most important tokens alone)]``; smaller is better.

    DeYoung et al. 2020 (ERASER), section 4. All but K = 1, 5, 10, 20, 50 % of the tokens are left
    out, the least important of them; a removal's share is what is left out.
    """

    name = "sufficiency"
    firsts = (LEAST,)
    percents = tuple(100 - percent for percent in BINS)

    def count(self, percent: int, n: int) -> int:
        return n - rationale(100 - percent, n)
