"""A matrix of signed numbers between two lists of tokens, with a colour bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normlens.figures.canvas import FRAME, INK, LARGEST_TICK, NOTE, TITLE, Sheet
from normlens.figures.captions import tick
from normlens.figures.fonts import Fonts
from normlens.figures.signed_colours import SignedColours
from normlens.figures.ticks import Ticks

_BAR_GAP, _BAR_WIDTH, _BAR_TICKS = 0.08, 0.07, 0.45
_WORD = 0.2
_WIDEST = 30.0  # inches; the cells of very long texts are smaller


@dataclass(frozen=True)
class SignedMatrix:
    """A heat map (row, column) laid out in inches, its last rows and columns set apart."""

    values: Any  # (row, column)
    rows: Ticks
    columns: Ticks
    words: tuple[str, str]  # what rows and columns are
    colours: SignedColours
    fonts: Fonts
    size: tuple[float, float]  # width and height of the map itself, inches
    apart: tuple[int, int] = (0, 0)  # rows and columns at the end that are no tokens
    first: int = 0  # columns before the line between two sequences; 0: there is one

    @classmethod
    def fitting(
        cls,
        values: Any,
        rows: Sequence[str],
        columns: Sequence[str],
        words: tuple[str, str],
        colours: SignedColours,
        fonts: Fonts,
        apart: tuple[int, int] = (0, 0),
        first: int = 0,
    ) -> SignedMatrix:
        """Cells are square, and as large as a page allows."""
        most = max(len(rows), len(columns))
        cell = min(max(0.09, 4.2 / most), 0.34, _WIDEST / most)
        width, height = cell * len(columns), cell * len(rows)
        return cls(
            values,
            Ticks.fitting(list(rows), height, fonts, LARGEST_TICK),
            Ticks.fitting(list(columns), width, fonts, LARGEST_TICK),
            words,
            colours,
            fonts,
            (width, height),
            apart,
            first,
        )

    @property
    def left(self) -> float:
        """The room of the labels at the left."""
        return self.rows.room + _WORD

    @property
    def below(self) -> float:
        """The room of the labels below."""
        return self.columns.room + _WORD

    @property
    def width(self) -> float:
        """All of it, with labels and colour bar."""
        return self.left + self.size[0] + _BAR_GAP + _BAR_WIDTH + _BAR_TICKS

    def draw(self, sheet: Sheet, x: float, y: float) -> Any:
        """Draw the map with its upper left corner at (x, y) inches."""
        width, height = self.size
        axes = sheet.axes(x, y, width, height)
        image = axes.imshow(
            self.values,
            cmap=self.colours.cmap,
            norm=self.colours.norm,
            interpolation="nearest",
            aspect="auto",
        )
        style = {"parse_math": False, "color": INK}
        for ticks, place in ((self.rows, axes.set_yticks), (self.columns, axes.set_xticks)):
            place(
                ticks.positions,
                ticks.labels,
                fontproperties=self.fonts.properties(ticks.size),
                **style,
            )
        for label in axes.get_xticklabels():
            label.set_rotation(90)
        word = {"fontproperties": self.fonts.properties(TITLE), "color": INK, "va": "center"}
        axes.set_ylabel(self.words[0], **word)
        axes.yaxis.set_label_coords(-(self.rows.room + 0.1) / width, 0.5)
        axes.set_xlabel(self.words[1], **word)
        axes.xaxis.set_label_coords(0.5, -(self.columns.room + 0.1) / height)
        axes.tick_params(length=1.5, width=0.5, pad=1.5, color=FRAME)
        for axis, line in ((0, axes.axhline), (1, axes.axvline)):
            if self.apart[axis]:
                edge = self.values.shape[axis] - self.apart[axis] - 0.5
                line(edge, color=INK, linewidth=0.8, linestyle=(0, (3, 2)))
        if self.first:
            axes.axvline(self.first - 0.5, color=INK, linewidth=0.8)
        for spine in axes.spines.values():
            spine.set_linewidth(0.5)
            spine.set_color(FRAME)
        colour_bar(sheet, image, x + width + _BAR_GAP, y, min(height, 2.4))
        return axes


def colour_bar(sheet: Sheet, image: Any, x: float, y: float, height: float) -> None:
    """A colour bar with its upper left corner at (x, y) inches."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    bar = sheet.figure.colorbar(image, cax=sheet.axes(x, y, _BAR_WIDTH, height))
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(tick))
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=NOTE, length=1.5, width=0.5, pad=1.5, colors=INK)
    bar.outline.set_linewidth(0.4)
