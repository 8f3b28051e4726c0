"""From values to colours: where a scale ends, and what lies beyond it.

``viewer/src/scale.ts`` has the same definition for the viewer; tests compare both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import valid_choice

#: Scales for numbers of both signs, as an option and in words.
SIGNED_SCALES = {"linear": "linear", "sqrt": "square-root"}
#: Scales for maps. "clipped" is a square root, too; outliers and i = j do not stretch it.
COLOUR_SCALES = {"clipped": "clipped square-root", **SIGNED_SCALES}

_BEYOND = "#c2410c"  # differs from the colours of the usual palettes, also for the colour-blind
_BEYOND_ON = {"magma": "#00c8ff", "inferno": "#00c8ff", "plasma": "#00c8ff"}
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

    valid_choice(colour, tuple(COLOUR_SCALES), "colour scale")
    return Normalize(0, top) if colour == "linear" else PowerNorm(0.5, 0, top)


def beyond(values: Any, norm: Any) -> NDArray[np.bool_]:
    """Which values of a masked array are beyond the end of a scale.

    Places on a scale are rounded, so they cannot tell the end from what is beyond it.
    """
    return np.ma.getdata(np.ma.filled(np.ma.masked_invalid(values) > norm.vmax, False))


def beyond_colour(cmap: str) -> str:
    """The colour of what is beyond a scale's end: none that the palette has."""
    return _BEYOND_ON.get(cmap, _BEYOND)


def scale_notes(
    colour: str, cmap: str, beyond: bool, what: str = "i = j and the few largest other pairs"
) -> list[str]:
    """A sentence about the clipped scale, which `what` does not stretch.

    `beyond` says whether anything lies beyond an end.
    """
    if colour != "clipped":
        return []
    marked = "blue" if cmap in _BEYOND_ON else "red"
    sentence = f"Clipped: {what} do not stretch a scale"
    return [f"{sentence}; what is beyond its end is {marked}." if beyond else f"{sentence}."]
