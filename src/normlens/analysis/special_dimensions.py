"""Special dimensions: the few with the lowest γ (Kobayashi et al. 2024, section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 0.01


def special_dimensions(gamma: Tensor, share: float = SHARE) -> tuple[Tensor, Tensor]:
    """The `share` of dimensions with the lowest `gamma` (at least one), and all the others sorted.

    γ is that of the norm behind the feed-forward block.
    """
    count = max(1, round(share * len(gamma)))
    order = gamma.argsort()
    return order[:count], order[count:].sort().values
