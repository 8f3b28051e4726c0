"""A picture measured in inches: the sheet, its heading, and the small print below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from normlens.errors import MissingDependencyError
from normlens.figures.fonts import Fonts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with colour-blindness tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
INK, FAINT, FRAME = "#1a1a1a", "#5f5f5f", "#9a9a9a"
# Sizes of text in points, lengths in inches.
HEADING, TEXT, TITLE, NOTE = 10.0, 8.5, 8.0, 6.5
LARGEST_TICK, SMALLEST_TICK = 7.5, 5.5
MARGIN = 0.15


def require_matplotlib() -> None:
    """Raise an error that names what to install where Matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need matplotlib; run: pip install 'normlens[viz]'"
        ) from error


class Sheet:
    """A figure measured in inches from its top left corner, so that nothing overlaps."""

    def __init__(self, width: float, height: float, fonts: Fonts):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height, self.fonts = width, height, fonts
        self.figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self.figure)
        # Jupyter knows how to show a figure only once pyplot was imported.
        vars(self.figure)["_repr_png_"] = partial(_png, self.figure)

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        box = (x / self.width, 1 - (y + height) / self.height)
        return self.figure.add_axes((*box, width / self.width, height / self.height))

    def text(
        self, x: float, y: float, text: str, size: float, weight: str = "normal", **style: Any
    ) -> Any:
        return self.figure.text(
            x / self.width,
            1 - y / self.height,
            self.fonts.drawable(text),
            fontproperties=self.fonts.properties(size, weight),
            parse_math=False,
            **{"va": "top", "color": INK, **style},
        )


def _png(figure: Figure) -> tuple[bytes, dict[str, int]]:
    """Render the figure for Jupyter, with twice the pixels that it takes on the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=192)
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return buffer.getvalue(), {"width": width, "height": height}


class Head:
    """Heading and lines of text above the panels."""

    def __init__(
        self,
        heading: str,
        texts: Sequence[str],
        fonts: Fonts,
        width: float,
    ):
        room = width - 2 * MARGIN
        self.heading = fonts.cut(heading, HEADING, room, "bold")
        self.lines = [line for text in texts for line in fonts.wrap(text, TEXT, room, 2)]
        self.height = 0.24 + 0.16 * len(self.lines) + 0.08

    def draw(self, sheet: Sheet) -> None:
        sheet.text(MARGIN, MARGIN, self.heading, HEADING, "bold")
        for number, line in enumerate(self.lines):
            sheet.text(MARGIN, MARGIN + 0.24 + 0.16 * number, line, TEXT)


class Notes:
    """Small print below the panels."""

    def __init__(self, notes: Sequence[str], fonts: Fonts, width: float):
        room = width - 2 * MARGIN
        self.lines = [line for note in notes for line in fonts.wrap(note, NOTE, room, 4)]
        self.height = 0.1 + 0.125 * len(self.lines)

    def draw(self, sheet: Sheet, y: float) -> None:
        for number, line in enumerate(self.lines):
            sheet.text(MARGIN, y + 0.1 + 0.125 * number, line, NOTE, color=FAINT)
