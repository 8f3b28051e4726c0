"""Colour scales for values and for numbers with a sign, and colour bars."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, valid_choice
from normlens.figures.canvas import INK, NOTE, number_axis

# From values to colours: where a scale ends, and what lies beyond it.
#
# ``viewer/src/scale.ts`` has the same definition for the viewer; tests compare both.


#: Scales as an option and in words. "clipped" is a square root, too; outliers and i = j do not
#: stretch it.
COLOUR_SCALES = {"clipped": "clipped square-root", "linear": "linear", "sqrt": "square-root"}

#: Palettes that have red, so that what is beyond them is blue.
BLUE_ON = ("magma", "inferno", "plasma")
_TIMES = 4  # so that the 90th percentile stands in the middle of a square-root scale
_FEWEST = 3  # pairs that may be beyond the end in a short text; else one in fifty


def clipped_end(values: NDArray[Any]) -> float:
    """Where the clipped scale of some pairs of two different tokens ends; 0 without a finite one.

    ``min(max, 4 · 90th percentile)``, but high enough that at most 2 % of the pairs (in short texts
    three) are beyond it. Percentiles are values of the list: the k-th smallest, k = ⌈0.9 m⌉.
    """
    ordered = np.sort(values[np.isfinite(values)], axis=None)
    m = len(ordered)
    if m == 0:
        return 0.0
    percentile = float(ordered[(9 * m + 9) // 10 - 1])
    least = float(ordered[max(0, m - 1 - max(_FEWEST, m // 50))])
    end = max(least, min(float(ordered[-1]), _TIMES * percentile))
    return end if end > 0 else float(ordered[-1])


def scale_end(values: Any, same_token: NDArray[np.bool_], colour: str) -> float:
    """The top of a colour scale for a masked array (…, i, j); 1 where nothing is above 0.

    The clipped scale looks at pairs of two different tokens alone, if there are some above 0; the
    others end at the largest value.
    """
    valid_choice(colour, tuple(COLOUR_SCALES), "colour scale")
    if colour == "clipped":
        shown = ~np.ma.getmaskarray(values) & ~same_token
        if (end := clipped_end(np.ma.getdata(values)[shown])) > 0:
            return end
    return largest(values)


def largest(values: Any) -> float:
    """The largest value of a masked array; 1 where nothing is above 0."""
    finite = np.ma.masked_invalid(values)
    top = float(finite.max()) if finite.count() else 0.0
    return top if top > 0 else 1.0


def colour_norm(colour: str, top: float) -> Any:
    """How values from 0 to `top` become places on the scale, as Matplotlib takes it."""
    from matplotlib.colors import Normalize, PowerNorm

    return Normalize(0, top) if colour == "linear" else PowerNorm(0.5, 0, top)


def beyond(values: Any, norm: Any) -> NDArray[np.bool_]:
    """Which values of a masked array are beyond the end of a scale.

    Places on a scale are rounded, so they cannot tell the end from what is beyond it.
    """
    return np.ma.getdata(np.ma.filled(np.ma.masked_invalid(values) > norm.vmax, False))


def beyond_colour(cmap: str) -> str:
    """The colour of what is beyond a scale's end: none that the palette has.

    It differs from the colours of the usual palettes for the colour-blind, too.
    """
    return "#00c8ff" if cmap in BLUE_ON else "#c2410c"


def palette_named(cmap: str) -> Any:
    """A colour map of Matplotlib."""
    from matplotlib import colormaps

    if cmap not in colormaps:
        raise InputError(
            f"unknown colour map {cmap!r}; matplotlib has viridis, cividis, magma, RdBu_r, …"
        )
    return colormaps[cmap]


def colour_bar(
    axes: Any, norm: Any, cmap: str, height: float, beyond: str = "", name: str = "", **options: Any
) -> None:
    """Draw the colours of a scale with their numbers, `height` inches of them.

    `beyond` is the colour of what is beyond the scale, if anything is; it stands at the end.
    `options` go to Matplotlib's ``colorbar``.
    """
    from matplotlib.cm import ScalarMappable

    options |= {"extend": "max", "extendrect": True} if beyond else {}
    palette = palette_named(cmap).with_extremes(over=beyond or None)
    bar = axes.figure.colorbar(ScalarMappable(norm, palette), cax=axes, **options)
    number_axis(axes.yaxis, min(4, max(1, int(height / 0.3))))
    axes.minorticks_off()
    bar.outline.set_linewidth(0.4)
    bar.set_label(name, fontsize=NOTE)


# Colours of numbers with a sign: red above 0, blue below, as people with colour-blindness see.


DIVERGING = "RdBu_r"
POSITIVE, NEGATIVE = "#b2182b", "#2166ac"  # of lines, which a pale colour would hide
NO_TOKEN = "#8a8a8a"  # what no token owns


class SignedColours:
    """A diverging colour map, white at 0 and alike on both sides of it.

    The scales are those of maps, of the values' sizes: "clipped" is a square root that outliers do
    not stretch. What is beyond its end has the last colour of its sign.
    """

    def __init__(self, values: Any, cmap: str = DIVERGING, scale: str = "clipped"):
        from matplotlib.colors import FuncNorm, Normalize

        valid_choice(scale, tuple(COLOUR_SCALES), "colour scale")
        self.cmap, self.palette = cmap, palette_named(cmap)
        sizes = np.ma.masked_invalid(np.abs(values))
        self.largest = largest(sizes)
        end = clipped_end(np.ma.compressed(sizes)) if scale == "clipped" else self.largest
        self.end = end if end > 0 else self.largest
        over = int((sizes > self.end).sum())
        #: the scale in words, and what is beyond its end
        self.words = f"{COLOUR_SCALES[scale]} scale up to ±{self.end:.3g}"
        if over:
            self.words += f" ({over} beyond it, up to {self.largest:.3g})"
        limits = -self.end, self.end
        roots = lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * np.square(x)
        self.norm: Any = Normalize(*limits) if scale == "linear" else FuncNorm(roots, *limits)

    def of(self, value: float) -> tuple[float, float, float]:
        """The colour of one value."""
        red, green, blue, _ = self.palette(self.norm(value))
        return float(red), float(green), float(blue)

    def ink(self, value: float) -> str:
        """The colour of text that can be read on a value's colour."""
        red, green, blue = self.of(value)
        return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else INK


def sign_colours(values: NDArray[Any]) -> NDArray[np.str_]:
    """The colours of lines by their signs alone."""
    return np.where(values >= 0, POSITIVE, NEGATIVE)
