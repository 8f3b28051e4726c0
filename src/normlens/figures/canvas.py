"""The page of a picture: its panels, heading and small print, its fonts and its words."""

from __future__ import annotations

import io
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError, MissingDependencyError, quoted
from normlens.options import cost_in_words
from normlens.results.rolled import rollout_words
from normlens.scopes import components_of, consecutive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanation import Cosine, Explanation
    from normlens.results.maps import Maps


# Okabe and Ito's colours, which people with colour-blindness tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
INK, FAINT, FRAME = "#1a1a1a", "#5f5f5f", "#9a9a9a"
# Sizes of text in points, lengths in inches.
HEADING, TEXT, TITLE, NOTE = 10.0, 8.5, 8.0, 6.5
LARGEST_TICK, SMALLEST_TICK = 7.5, 5.5
MARGIN = 0.15
BAR = 0.07  # the width of a colour bar
_TICKS = {
    "color": FRAME,
    "labelcolor": INK,
    "labelsize": NOTE,
    "major.size": 2,
    "major.width": 0.5,
    "major.pad": 1.5,
}
#: Thin frames, short ticks and small numbers.
_STYLE = {
    "axes.linewidth": 0.5,
    "axes.edgecolor": FRAME,
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in _TICKS.items()},
}


def require_matplotlib() -> None:
    """Raise an error that names what to install where Matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need matplotlib; run: pip install 'normlens[viz]'"
        ) from error


def check_at_least_one(**options: int) -> None:
    """Raise unless every option is 1 or more."""
    for name, value in options.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")


# Fonts that can draw every character of a picture, and how much room its texts take.


def families_for(texts: Iterable[str]) -> list[str]:
    """The user's font, then Matplotlib's, then installed fonts that the texts still need."""
    from matplotlib import rcParams

    fallbacks = {_font_with(character) for text in texts for character in text}
    needed = sorted(fallbacks - {None, "DejaVu Sans"}, key=str)
    return list(dict.fromkeys([*rcParams["font.family"], "DejaVu Sans", *map(str, needed)]))


def drawable(text: str) -> str:
    """Replace the characters that no installed font has, which Matplotlib would warn about."""
    return "".join(c if c == "\n" or _font_with(c) else "□" for c in text)


@cache
def _font_with(character: str) -> str | None:
    """Find an installed font that has a character, Matplotlib's own first."""
    from matplotlib import get_cachedir
    from matplotlib.font_manager import findfont, fontManager

    if ord(character) in _letters(str(findfont("DejaVu Sans"))):
        return "DejaVu Sans"
    for entry in fontManager.ttflist:
        # Matplotlib's own "Last Resort" has a box for every character of Unicode.
        if not entry.name.startswith("Last Resort") and ord(character) in _letters(entry.fname):
            return str(entry.name)
    # Spaces and control characters have no glyph anywhere.
    if unicodedata.category(character)[0] not in "CZ":
        # The same words at the same place, which Python shows once.
        warnings.warn(
            "no installed font has some characters of this text, which are drawn as □; install one "
            f"that has them and delete Matplotlib's list of fonts in {get_cachedir()!r}",
            stacklevel=1,
        )
    return None


@cache
def _letters(path: str) -> frozenset[int]:
    """List the characters that a font file can draw at any size."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):  # a font that FreeType cannot scale or read
        return frozenset()


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """The width of a text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=families_for([text]), size=size, weight=weight)
    points = text_to_path.get_text_width_height_descent(drawable(text), font, ismath=False)[0]
    # Hinting makes letters wider than they are drawn, the more so the fewer the pixels.
    return 1.05 * float(points) / 72


def wrap(text: str, size: float, width: float, lines: int, weight: str = "normal") -> list[str]:
    """Break a text into at most `lines` lines of a width in inches; cut the rest."""
    whole = drawable(text[:2000])
    total = text_width(whole, size, weight)
    if total <= width:
        return [whole]
    count = max(2, int(1.3 * len(whole) * width / total))  # characters
    while True:
        wrapped = textwrap.wrap(whole, count)
        if len(wrapped) > lines:
            wrapped[lines - 1 :] = [wrapped[lines - 1][: count - 1].rstrip() + "…"]
        if count == 2 or all(text_width(line, size, weight) <= width for line in wrapped):
            return wrapped
        count = max(2, int(0.97 * count))


# A figure whose panels have a given size, with words above and below them.


class Page:
    """A figure with panels of given sizes in inches, a heading above them, small print below.

    Matplotlib's constrained layout makes room for what is written around the panels. The page grows
    until the panels have their sizes, and is laid out once, so that all file formats look alike.
    """

    def __init__(
        self, heading: str, lines: Sequence[str], widths: Sequence[float], heights: Sequence[float]
    ):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.heading, self.lines = heading, lines
        self.widths, self.heights = widths, heights
        size = (1.2 * sum(widths) + 2, 1.2 * sum(heights) + 2)
        self.figure = Figure(figsize=size, facecolor="white", layout="constrained")
        FigureCanvasAgg(self.figure)
        # Jupyter knows how to show a figure only once pyplot was imported.
        vars(self.figure)["_repr_png_"] = partial(_png, self.figure)
        self.grid = self.figure.add_gridspec(
            len(heights), len(widths), width_ratios=widths, height_ratios=heights
        )
        self.strips: list[tuple[str, Any, Callable[[Any, float], float]]] = []

    def axes(self, row: int | slice = 0, column: int = 0) -> Any:
        """Add the axes of one panel."""
        from matplotlib import rc_context

        with rc_context(_STYLE):
            return self.figure.add_subplot(self.grid[row, column])

    def add_strip(self, name: str, draw: Callable[[Any, float], float]) -> None:
        """Add something between heading and panels, as wide as the page.

        `draw` takes axes and a width in inches and returns the height that it takes.
        """
        self.strips.append((name, self.figure.add_axes((0, 0, 1, 1)), draw))

    def finish(self, notes: Sequence[str], narrowest: float = 4.0) -> Figure:
        """Lay the page out and write heading and notes."""
        figure = self.figure
        self._set_fonts()
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=0.05, h_pad=0.05)
        layout.execute(figure)
        panel = next(axes for axes in figure.axes if axes.get_subplotspec() is not None)
        place: Any = panel.get_subplotspec()
        wanted = self.widths[place.colspan.start], self.heights[place.rowspan.start]
        size = figure.get_size_inches()
        box = panel.get_position(original=True)
        width = size[0] - sum(self.widths) * (box.width * size[0] / wanted[0] - 1)
        height = size[1] - sum(self.heights) * (box.height * size[1] / wanted[1] - 1)

        width, height = round(width, 4), round(height, 4)
        room = max(width, narrowest)
        lines = [line for text in self.lines for line in wrap(text, TEXT, room, 2)]
        small = [line for note in notes for line in wrap(note, NOTE, room, 4)]
        strips = [(name, axes, draw(axes, room)) for name, axes, draw in self.strips]
        above = 0.24 + 0.16 * len(lines) + 0.08
        below = MARGIN + 0.1 + 0.125 * len(small)
        top = MARGIN + above + sum(tall + (0.16 if name else 0) for name, _, tall in strips)
        across, down = room + 2 * MARGIN, top + height + below
        figure.set_size_inches(across, down)
        layout.set(rect=(MARGIN / across, below / down, width / across, height / down))
        layout.execute(figure)
        figure.set_layout_engine("none")
        for axes in figure.axes:  # the solver's last digits differ from one time to the next
            left, bottom, wide, tall = axes.get_position(original=True).bounds
            rounded = (round(left, 5), round(bottom, 5), round(wide, 5), round(tall, 5))
            axes.set_position(rounded, which="both")

        def write(y: float, text: str, size: float, **style: Any) -> None:
            figure.text(MARGIN / across, 1 - y / down, text, size=size, va="top", **style)

        [first] = wrap(self.heading, HEADING, room, 1, "bold")
        write(MARGIN, first, HEADING, weight="bold")
        for row, line in enumerate(lines):
            write(MARGIN + 0.24 + 0.16 * row, line, TEXT)
        y = MARGIN + above
        for name, axes, tall in strips:
            if name:
                write(y, name, TITLE, weight="bold")
                y += 0.16
            axes.set_position((MARGIN / across, 1 - (y + tall) / down, room / across, tall / down))
            y += tall
        for row, line in enumerate(small):
            write(down - below + 0.1 + 0.125 * row, line, NOTE, color=FAINT)
        self._set_fonts()
        return figure

    def _set_fonts(self) -> None:
        """Write all texts in fonts that have their characters, and none as mathematics."""
        from matplotlib.text import Text
        from matplotlib.ticker import FixedLocator

        for axes in self.figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                labels = [label.get_text() for label in axis.get_ticklabels()]
                shown = list(map(drawable, labels))
                if shown != labels and isinstance(axis.get_major_locator(), FixedLocator):
                    axis.set_ticklabels(shown)
        texts: list[Any] = self.figure.findobj(Text)
        families = families_for(text.get_text() for text in texts)
        for text in texts:
            text.set(fontfamily=families, parse_math=False, text=drawable(text.get_text()))


def _png(figure: Figure) -> tuple[bytes, dict[str, int]]:
    """Render the figure for Jupyter, with twice the pixels that it takes on the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=192)
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return buffer.getvalue(), {"width": width, "height": height}


def figure_of(ax: Axes) -> Figure:
    """Find the figure that the axes belong to."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("these axes belong to no figure")
    return figure


# The look of axes.


def bold_title(axes: Any, title: str, size: float = TITLE, pad: float = 4) -> None:
    """Write the title of a panel above its left corner."""
    axes.set_title(title, loc="left", size=size, weight="bold", pad=pad)


def thin_frame(axes: Any, sides: Sequence[str] = ("left", "right", "top", "bottom")) -> None:
    """Draw thin grey lines at some sides of a panel."""
    for side, spine in axes.spines.items():
        spine.set(visible=side in sides, linewidth=0.5, color=FRAME)


def number_axis(axis: Any, count: int = 5, words: str = "") -> None:
    """Give an axis few and small numbers, and say what they measure."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(tick))
    axis.set_label_text(words, size=NOTE)


def legend_above(axes: Any) -> None:
    """Draw the legend in one line above a panel."""
    style: dict[str, Any] = {"handlelength": 0.8, "handleheight": 0.8, "borderaxespad": 0.2}
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 9}
    axes.legend(frameon=False, fontsize=TITLE, **place, **style)


# Words about maps: headings, notes and numbers as they are written.


def additions(names: Sequence[str]) -> dict[str, str]:
    """Say what each panel adds to the one that its scope extends."""
    words = {"ATTN-W": "weights", "ATTNRES-W": "½ + ½ identity", "CROSS-W": "weights"}
    before = {step.after: step.before for step in consecutive(names)}
    for scope in names:
        parts = components_of(scope)
        known = len(components_of(before[scope])) if scope in before else -1
        is_attention = parts[-1] in ("ATTN", "CROSS")
        new = "weights × values" if is_attention else "+ " + " ".join(parts[known:])
        words.setdefault(scope, new)
    return words


def unit(maps: Maps, scope: str, normalise: str) -> str:
    """Say what a scope's colours measure."""
    if normalise != "none":
        line = {"source": "column", "target": "row"}[normalise]
        return f"share of each {normalise}'s {line}"
    if (how := rollout_words(maps)) is not None:
        return how
    return "norm of the part ‖F_i(x_j)‖" if scope.endswith("-N") else "attention weight"


def measured(maps: Maps, names: Sequence[str], normalise: str) -> str:
    """Say what the colours measure, and in which panels."""
    kinds = {unit(maps, scope, normalise): scope[-1] for scope in names}
    if len(kinds) == 1:
        return next(iter(kinds))
    return ", ".join(f"{unit} (-{letter})" for unit, letter in kinds.items())


def model_name(result: Maps | Explanation | Cosine) -> str:
    return str(result.provenance.get("model") or "model")


def model_and(maps: Maps, what: str) -> str:
    """A heading: the model, what is shown of it, and whose contributions, if not the layer's."""
    return ", ".join(filter(None, [model_name(maps), what, maps.origin_in_words]))


def stack_words(maps: Maps, words: str) -> str:
    """Words about layers, after the name of an encoder–decoder's stack."""
    return f"{maps.stack} {words}" if maps.stack else words


def text_lines(result: Maps | Explanation) -> list[str]:
    """Quote the text in one line; no line without a text."""
    return [" ".join(quoted(result.text))] if result.text is not None else []


def provenance(maps: Maps) -> str:
    """Say in one line how the numbers of maps were made."""
    measured = any(scope.endswith("-N") for scope in maps.scopes)  # weights have no parts
    return made(maps.provenance, maps.completeness if measured else None, "maps")


def generated_note(maps: Maps) -> list[str]:
    """A note where the target was not given."""
    target = str(maps.provenance.get("target", ""))
    return [f"The target is the model's own ({target})."] if target.startswith("generated") else []


def made(facts: Mapping[str, Any], completeness: float | None, what: str = "contributions") -> str:
    """Say in one line how the numbers were made, and how exactly."""
    cost = cost_in_words(str(facts.get("dtype")))
    exactly = "not measured" if completeness is None else f"{completeness:.1e}{cost}"
    words = [f"completeness {exactly}"]
    if "dtype" in facts:
        own = facts.get("compute_dtype", facts["dtype"])
        other = "" if own == facts["dtype"] else f" ({what} in {own})"
        words.append(f"{facts['dtype']}{other}")
    if "nonlinearity" in facts:
        words.append(f"rule {facts['nonlinearity']}")
    if "normlens" in facts.get("versions", {}):
        words.append(f"normlens {facts['versions']['normlens']}")
    if facts.get("note"):
        words.append(str(facts["note"]))
    return " · ".join(words)


def number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def tick(value: float, _position: int) -> str:
    short = f"{value:.5g}" if abs(value) < 1e5 else f"{value:.2g}".replace("e+0", "e")
    return short.replace("-", "−")


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def cut_label(token: str, longest: int) -> str:
    return token if len(token) <= longest else token[: max(1, longest - 1)] + "…"
