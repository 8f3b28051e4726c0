"""Special dimensions of a norm: the few with the lowest γ, and those with an outlying one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 0.01
DEVIATIONS = 3.0


def special_dimensions(gamma: Tensor, share: float = SHARE) -> tuple[Tensor, Tensor]:
    """The `share` of dimensions with the lowest `gamma` (at least one), and all the others sorted.

    γ is that of the norm behind the feed-forward block (Kobayashi et al. 2024, section 6).
    """
    count = max(1, round(share * len(gamma)))
    order = gamma.argsort()
    return order[:count], order[count:].sort().values


def outlier_dimensions(gamma: Tensor, deviations: float = DEVIATIONS) -> tuple[Tensor, Tensor]:
    """The dimensions whose γ is further from the mean than 3σ of all γ, and all the others.

    Kovaleva et al. 2021 call them outliers; there may be none.
    """
    spread = gamma.double() - gamma.double().mean()
    far = spread.abs() > deviations * spread.square().mean().sqrt()
    return far.nonzero().flatten(), (~far).nonzero().flatten()
