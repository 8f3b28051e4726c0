"""Colour scales, colour bars, tick labels, and the columns that a picture shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, valid_choice
from normlens.figures.canvas import FRAME, INK, NOTE, SMALLEST_TICK, Fonts, Sheet, tick
from normlens.results.words import OWN_SEQUENCE
from normlens.scopes import holds

if TYPE_CHECKING:
    from normlens.results.maps import Maps


# From values to colours: where a scale ends, and what lies beyond it.
#
# ``viewer/src/scale.ts`` has the same definition for the viewer; tests compare both.


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


# Colours of numbers with a sign: red above 0, blue below, as people with colour-blindness see.


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


# A colour bar beside a panel.


BAR_GAP, BAR_WIDTH, BAR_TICKS = 0.06, 0.07, 0.36  # inches


def colour_bar(
    sheet: Sheet,
    image: Any,
    x: float,
    y: float,
    height: float,
    name: str = "",
    *,
    beyond: str = "",
) -> None:
    """Draw the colours of an image with their numbers, and what they measure.

    `beyond` is the colour of what is beyond the scale, if anything is; it stands at the end.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = sheet.axes(x, y, BAR_WIDTH, height)
    palette = image.cmap.with_extremes(over=beyond) if beyond else image.cmap
    extend = "max" if beyond else "neither"
    shown = ScalarMappable(image.norm, palette)
    bar = sheet.figure.colorbar(shown, cax=axes, extend=extend, extendrect=True)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(tick))
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=NOTE, length=1.5, width=0.5, pad=1.5, colors=INK)
    bar.outline.set_linewidth(0.4)
    if name:
        bar.set_label(name, fontsize=NOTE, color=INK)


# Tokens and axis words at the edges of heat maps.


TARGET = "target i (output)"
SOURCE = "source j (input)"


def axis_words(maps: Maps) -> tuple[str, str]:
    """What the axes of targets and sources are called; of two sequences, whose tokens they show."""
    if not maps.stack:
        return TARGET, SOURCE
    shown = dict.fromkeys(maps.source_sequences or [maps.stack])
    sources = f"({next(iter(shown))})" if len(shown) == 1 else f": {' | '.join(shown)}"
    return f"target i ({maps.stack})", f"source j {sources}".replace(" :", ":")


@dataclass(frozen=True)
class Ticks:
    """Which tokens are labelled, how, and the room that the labels take."""

    positions: list[int]
    labels: list[str]
    size: float
    room: float
    stride: int

    @classmethod
    def fitting(cls, labels: list[str], side: float, fonts: Fonts, largest: float) -> Ticks:
        cell = 72 * side / len(labels)  # points per token
        size = min(max(0.85 * cell, SMALLEST_TICK), largest)
        stride = max(1, math.ceil(1.1 * size / cell))
        positions = list(range(0, len(labels), stride))
        shown = [labels[i] for i in positions]
        room = max(fonts.width(label, size) for label in shown) + 0.06
        return cls(positions, [fonts.drawable(label) for label in shown], size, room, stride)


def left_out_note(targets: Ticks, sources: Ticks, whose: str = "") -> list[str]:
    """A note where there is no room for every token's label, in the maps of `whose` stack."""
    where = f" in the {whose}'s maps" if whose else ""
    if targets.stride == sources.stride:
        every = {"token": targets.stride}
    else:
        every = {"target": targets.stride, "source": sources.stride}
    return [
        f"Every {_ordinal(stride)} {what} is labelled{where}."
        for what, stride in every.items()
        if stride > 1
    ]


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def label_edges(
    axes: Any,
    left: Ticks | None,
    below: Ticks | None,
    fonts: Fonts,
    side: float,
    word_size: float,
    words: tuple[str, str] = (TARGET, SOURCE),
) -> None:
    """Targets and the axis word at the left edge, sources below the panel, where they are given.

    `words` are those of the targets' axis and of the sources'.
    """
    longest = max(fonts.width(word, word_size) for word in words)
    size = min(word_size, word_size * (side + 0.08) / longest)
    word = {"fontproperties": fonts.properties(size), "color": INK, "va": "center"}
    axes.set_xticks([] if below is None else below.positions)
    axes.set_yticks([] if left is None else left.positions)
    if below is not None:
        axes.set_xticklabels(below.labels, rotation=90, **_tick_style(below, fonts))
        axes.set_xlabel(words[1], **word)
        axes.xaxis.set_label_coords(0.5, -(below.room + 0.1) / side)
    if left is not None:
        axes.set_yticklabels(left.labels, **_tick_style(left, fonts))
        axes.set_ylabel(words[0], **word)
        axes.yaxis.set_label_coords(-(left.room + 0.1) / side, 0.5)
    if below is not None or left is not None:
        axes.tick_params(length=1.5, width=0.5, pad=1.5, color=FRAME)


def _tick_style(ticks: Ticks, fonts: Fonts) -> dict[str, Any]:
    return {"fontproperties": fonts.properties(ticks.size), "parse_math": False, "color": INK}


# Which columns a picture shows where sources are two sequences, and where these meet.


@dataclass(frozen=True)
class ShownColumns:
    """The sources that a picture shows: all, or those of one sequence."""

    maps: Maps  # with these columns alone
    places: NDArray[np.intp]
    sequence: str | None = None

    @classmethod
    def of(cls, maps: Maps, sources: str | None) -> ShownColumns:
        """All columns, or those of the sequence called `sources`, "encoder" or "decoder"."""
        if sources is None:
            return cls(maps, np.arange(len(maps.sources)))
        shown = maps.sources_of(sources)
        return cls(shown, np.flatnonzero(np.array(maps.source_sequences) == sources), sources)

    def cut(self, values: Any) -> Any:
        """Values (…, j) of all columns, for those that are shown."""
        return values[..., self.places]

    def scopes(self, names: Sequence[str]) -> list[str]:
        """The scopes that have parts of what is shown."""
        if self.sequence is None:
            return list(names)
        own = self.sequence == OWN_SEQUENCE
        shown = [name for name in names if holds(name)[0 if own else 1]]
        if not shown:
            raise InputError(
                f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no parts of the "
                f"{self.sequence}'s tokens; choose other scopes, or show all sources"
            )
        return shown

    @property
    def divided(self) -> float | None:
        """Where the line between two sequences stands, in columns; None if there is one."""
        sequences = self.maps.source_sequences
        if len(set(sequences)) < 2:
            return None
        return sequences.index(OWN_SEQUENCE) - 0.5

    @property
    def blank_note(self) -> list[str]:
        """A note on columns that stay blank in some of the panels."""
        if self.divided is None or not self.maps.stack:
            return []
        return [
            "A line divides the encoder's tokens from the decoder's; a scope is blank where it has "
            "no parts of a sequence."
        ]
