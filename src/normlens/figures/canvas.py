"""The page of a picture: its panels, heading and small print, its fonts and its words."""

from __future__ import annotations

import io
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.errors import InputError, MissingDependencyError, quoted
from normlens.options import cost_in_words
from normlens.results.rolled import rollout_words
from normlens.scopes import components_of, consecutive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.citation import Citation
    from normlens.results.explanation import Cosine, Explanation
    from normlens.results.maps import Maps


# Okabe and Ito's colours, which people with colour-blindness tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
INK, FAINT, FRAME = "#1a1a1a", "#5f5f5f", "#9a9a9a"
# Sizes of text in points, lengths in inches.
HEADING, TEXT, TITLE, NOTE = 10.0, 8.5, 8.0, 6.5
LARGEST_TICK, SMALLEST_TICK = 7.5, 5.5
LINE = 0.019  # the height of a line, for each point of its text
MARGIN = 0.15
BAR = 0.07  # the width of a colour bar


def require_matplotlib() -> None:
    """Raise an error that names what to install where Matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need matplotlib; run: pip install 'normlens[viz]'"
        ) from error


# Fonts that can draw every character of a picture, and how much room its texts take.


_OWN_FONT = "DejaVu Sans"  # which Matplotlib brings along


def families_for(texts: Iterable[str]) -> list[str]:
    """The user's font, then Matplotlib's, then installed fonts that the texts still need."""
    from matplotlib import rcParams

    needed = filter(None, {_font_with(character) for text in texts for character in text})
    return list(dict.fromkeys([*rcParams["font.family"], _OWN_FONT, *sorted(needed)]))


def drawable(text: str) -> str:
    """Replace the characters that no installed font has, which Matplotlib would warn about."""
    return "".join(c if c == "\n" or _font_with(c) else "□" for c in text)


@cache
def _font_with(character: str) -> str | None:
    """Find an installed font that has a character, Matplotlib's own first."""
    from matplotlib import get_cachedir
    from matplotlib.font_manager import fontManager

    for font in sorted(fontManager.ttflist, key=lambda font: font.name != _OWN_FONT):
        # Matplotlib's own "Last Resort" has a box for every character of Unicode.
        if not font.name.startswith("Last Resort") and ord(character) in _letters(font.fname):
            return str(font.name)
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
    """The width of a drawable text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=families_for([text]), size=size, weight=weight)
    points = text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
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
        self,
        result: Maps | Explanation | Cosine | Citation,
        what: str,
        widths: Sequence[float],
        heights: Sequence[float],
        lines: Sequence[str] = (),
    ):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.result, self.what, self.lines = result, what, lines
        self.widths, self.heights = widths, heights
        size = (1.2 * sum(widths) + 2, 1.2 * sum(heights) + 2)
        self.figure = Figure(figsize=size, facecolor="white", layout="constrained")
        FigureCanvasAgg(self.figure)
        # Jupyter knows how to show a figure only once pyplot was imported.
        vars(self.figure)["_repr_png_"] = partial(_png, self.figure)
        self.grid = self.figure.add_gridspec(
            len(heights), len(widths), width_ratios=widths, height_ratios=heights
        )
        self.strips: list[tuple[Any, Callable[[Any, float], float]]] = []

    def axes(self, row: int | slice = 0, column: int = 0) -> Any:
        """Add the axes of one panel: thin frames, short ticks and small numbers."""
        axes: Any = self.figure.add_subplot(self.grid[row, column])
        ticks = {"color": FRAME, "width": 0.5, "length": 2, "pad": 1.5}
        axes.tick_params(labelcolor=INK, labelsize=NOTE, **ticks)
        axes.spines[:].set(linewidth=0.5, color=FRAME)
        return axes

    def add_strip(self, draw: Callable[[Any, float], float]) -> None:
        """Add something between heading and panels, as wide as the page.

        `draw` takes axes and a width in inches and returns the height that it takes.
        """
        self.strips.append((self.figure.add_axes((0, 0, 1, 1)), draw))

    def finish(self, notes: Sequence[str], narrowest: float = 4.0) -> Figure:
        """Lay the page out and write heading, text, lines and notes."""
        figure = self.figure
        self._set_fonts()
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=0.05, h_pad=0.05)
        layout.execute(figure)
        # The first panel that was added is as large as that of the upper left corner.
        panel = next(axes for axes in figure.axes if axes.get_subplotspec() is not None)
        size = figure.get_size_inches()
        wanted = np.array([self.widths[0], self.heights[0]])
        scale = panel.get_position(original=True).size * size / wanted
        # The size at which all panels have theirs: what stands around them does not scale.
        totals = np.array([sum(self.widths), sum(self.heights)])
        width, height = np.round(size - totals * (scale - 1), 4).tolist()

        room = max(width, narrowest)
        text = " ".join(quoted(getattr(self.result, "text", None)))  # a cosine has two
        about = filter(None, [text, *self.lines])
        lines = [line for words in about for line in wrap(words, TEXT, room, 2)]
        made_how = [*notes, made(self.result)]
        small = [line for note in made_how for line in wrap(note, NOTE, room, 4)]
        strips = [(axes, draw(axes, room)) for axes, draw in self.strips]
        above = MARGIN + 0.24 + LINE * TEXT * len(lines) + 0.08
        below = MARGIN + 0.1 + LINE * NOTE * len(small)
        across = room + 2 * MARGIN
        down = above + sum(tall for _, tall in strips) + height + below
        figure.set_size_inches(across, down)
        layout.set(rect=(MARGIN / across, below / down, width / across, height / down))
        layout.execute(figure)
        figure.set_layout_engine("none")
        for axes in figure.axes:  # the solver's last digits differ from one time to the next
            bounds: Any = np.round(axes.get_position(original=True).bounds, 5)
            axes.set_position(bounds, which="both")
        for axes, tall in strips:
            above += tall
            axes.set_position((MARGIN / across, 1 - above / down, room / across, tall / down))

        def write(y: float, texts: Iterable[str], size: float, **style: Any) -> None:
            for row, text in enumerate(texts):
                place = MARGIN / across, 1 - (y + row * LINE * size) / down
                figure.text(*place, text, size=size, va="top", **style)

        heading = wrap(heading_of(self.result, self.what), HEADING, room, 1, "bold")
        write(MARGIN, heading, HEADING, weight="bold")
        write(MARGIN + 0.24, lines, TEXT)
        write(down - below + 0.1, small, NOTE, color=FAINT)
        self._set_fonts()
        return figure

    def _set_fonts(self) -> None:
        """Write all texts in fonts that have their characters, and none as mathematics."""
        from matplotlib.text import Text

        texts: list[Any] = self.figure.findobj(Text)
        families = families_for(text.get_text() for text in texts)
        for text in texts:
            text.set(fontfamily=families, parse_math=False)


def _png(figure: Figure) -> tuple[bytes, dict[str, int]]:
    """Render the figure for Jupyter, with twice the pixels that it takes on the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=192)
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return buffer.getvalue(), {"width": width, "height": height}


def finish_axes(ax: Axes, **labels: str) -> Figure:
    """Write what somebody else's axes show; return their figure."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("these axes belong to no figure")
    ax.set(**labels)
    ax.title.set_parse_math(False)
    return figure


# The look of axes.


def bold_title(axes: Any, title: str, size: float = TITLE, pad: float = 4) -> None:
    """Write the title of a panel above its left corner."""
    axes.set_title(title, loc="left", size=size, weight="bold", pad=pad)


def number_axis(axis: Any, count: int = 5, words: str = "") -> None:
    """Give an axis few and small numbers, and say what they measure."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter("{x:.5g}")
    axis.set_label_text(words, size=NOTE)


def legend_above(axes: Any) -> None:
    """Draw the legend in one line above a panel."""
    squares = {"handlelength": 0.8, "handleheight": 0.8}
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    axes.legend(frameon=False, fontsize=TITLE, ncols=9, **place, **squares)


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


def heading_of(result: Maps | Explanation | Cosine | Citation, what: str) -> str:
    """The model, what is shown of it, and of maps whose contributions, if not the layer's."""
    model = str(result.provenance.get("model") or "model")
    origin = getattr(result, "origin_in_words", None)
    return f"{model}: {what}" if origin is None else ", ".join(filter(None, [model, what, origin]))


def stack_words(maps: Maps, words: str) -> str:
    """Words about layers, after the name of an encoder–decoder's stack."""
    return f"{maps.stack} {words}" if maps.stack else words


def generated_note(maps: Maps) -> list[str]:
    """A note where the target was not given."""
    target = str(maps.provenance.get("target", ""))
    return [f"The target is the model's own ({target})."] if target.startswith("generated") else []


def made(result: Maps | Explanation | Cosine | Citation) -> str:
    """Say in one line how the numbers were made, and how exactly."""
    facts = result.provenance
    exactly = f"{result.completeness:.1e}{cost_in_words(str(facts.get('dtype')))}"
    if not any(scope.endswith("-N") for scope in getattr(result, "scopes", ["-N"])):
        exactly = "not measured"  # weights have no parts
    words = [f"completeness {exactly}"]
    if "dtype" in facts:
        own = facts.get("compute_dtype", facts["dtype"])
        other = "" if own == facts["dtype"] else f" (computed in {own})"
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


def cut_labels(tokens: Iterable[str], max_label: int) -> list[str]:
    """Tokens as labels: longer ones are cut, and characters that no font has are boxes."""
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    cut = (t if len(t) <= max_label else t[: max(1, max_label - 1)] + "…" for t in tokens)
    return list(map(drawable, cut))
