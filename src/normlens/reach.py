"""Which sources a target may see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Reach:
    """The sources that a target sees: ``i − back ≤ j ≤ i + ahead``; None: no limit."""

    back: int | None = None
    ahead: int | None = None

    def mask(self, n: int, device: torch.device | None = None) -> Tensor:
        """Which (target, source) pairs attention allows, as (n, n) booleans."""
        position = torch.arange(n, device=device)
        offset = position[None, :] - position[:, None]  # j − i
        allowed = torch.ones_like(offset, dtype=torch.bool)
        if self.back is not None:
            allowed &= offset >= -self.back
        if self.ahead is not None:
            allowed &= offset <= self.ahead
        return allowed

    def array(self, n: int) -> NDArray[np.bool_]:
        """The mask as NumPy makes it, by one thread: others may be busy with what a GPU sends."""
        allowed = np.tri(n, k=n if self.ahead is None else self.ahead, dtype=bool)
        if self.back is not None:
            allowed &= ~np.tri(n, k=-self.back - 1, dtype=bool)
        return allowed

    def pairs(self, n: int) -> int:
        """How many pairs the mask allows."""
        far = [n - 1 if reach is None else min(reach, n - 1) for reach in (self.back, self.ahead)]
        return n + sum(k * n - k * (k + 1) // 2 for k in far)

    def then(self, other: Reach) -> Reach:
        """How far a target sees through this reach and another one behind it."""

        def far(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a + b

        return Reach(far(self.back, other.back), far(self.ahead, other.ahead))

    def sources(self, first: int, last: int, n: int) -> tuple[int, int]:
        """The half-open range of sources that any target in [first, last) may see."""
        start = 0 if self.back is None else max(0, first - self.back)
        stop = n if self.ahead is None else min(n, last + self.ahead)
        return start, stop
