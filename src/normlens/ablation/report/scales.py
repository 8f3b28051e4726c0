"""Axes of changes, a few of which may be many times as large as the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

#: From here on the largest value hides the middle one on a linear axis.
_SKEWED = 25


def scale_changes(axes: Any, values: ArrayLike, signed: bool = True) -> None:
    """Make the vertical axis logarithmic where the largest change hides the others.

    Without `signed`, only where all are above 0; otherwise it is linear around 0, up to the median.
    """
    given = np.asarray(values, dtype=np.float64)
    given = given[np.isfinite(given)]
    size = np.abs(given)
    middle = float(np.median(size)) if len(size) else 0.0
    if not middle > 0 or size.max() <= _SKEWED * middle:
        return
    if given.min() > 0:
        axes.set_yscale("log")
    elif signed:
        axes.set_yscale("symlog", linthresh=middle)
    else:
        return
    low, high = float(given.min()), float(given.max())
    bottom = low / 2 if low > 0 else min(-middle / 2, 2 * low)
    axes.set_ylim(bottom, max(2 * high, middle))
