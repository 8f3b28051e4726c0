"""Colours of numbers with a sign: red above 0, blue below, as people with colour-blindness see."""

from __future__ import annotations

from typing import Any

import numpy as np

from normlens.errors import InputError, valid_choice
from normlens.figures.canvas import INK
from normlens.figures.colour_scales import SIGNED_SCALES

DIVERGING = "RdBu_r"
POSITIVE, NEGATIVE = "#b2182b", "#2166ac"  # of lines, which a pale colour would hide
NO_TOKEN = "#8a8a8a"  # what no token owns


class SignedColours:
    """A diverging colour map, white at 0 and alike on both sides of it.

    The "sqrt" scale brings out small values beside large ones of either sign.
    """

    def __init__(self, values: Any, cmap: str = DIVERGING, scale: str = "linear"):
        from matplotlib import colormaps
        from matplotlib.colors import FuncNorm, Normalize

        valid_choice(scale, tuple(SIGNED_SCALES), "colour scale")

        if cmap not in colormaps:
            raise InputError(
                f"unknown colour map {cmap!r}; matplotlib has RdBu_r, PuOr_r, coolwarm, …"
            )
        finite = np.abs(np.asarray(values, dtype=float))
        finite = finite[np.isfinite(finite)]
        self.largest = float(finite.max(initial=0.0)) or 1.0
        self.cmap = cmap
        limits = -self.largest, self.largest
        self.norm: Any = (
            Normalize(*limits)
            if scale == "linear"
            else FuncNorm((_signed_root, _signed_square), *limits)
        )
        self._colours = colormaps[cmap]

    def of(self, value: float) -> tuple[float, float, float]:
        """The colour of one value."""
        red, green, blue, _ = self._colours(self.norm(value))
        return float(red), float(green), float(blue)

    def ink(self, value: float) -> str:
        """The colour of text that can be read on a value's colour."""
        red, green, blue = self.of(value)
        return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else INK


def _signed_root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _signed_square(values: Any) -> Any:
    return np.sign(values) * np.square(values)


def sign_colour(value: float) -> str:
    """The colour of a line by its sign alone."""
    return POSITIVE if value >= 0 else NEGATIVE
