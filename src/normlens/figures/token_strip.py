"""A strip of tokens, each on the colour of its number, broken into lines like a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normlens.figures.canvas import FAINT, FRAME, INK, MARGIN, Sheet
from normlens.figures.fonts import Fonts
from normlens.figures.signed_colours import SignedColours
from normlens.results.contribution_rows import NO_TOKEN_WORDS
from normlens.results.explanation_words import decimals, signed_number

_PAD, _GAP, _HEIGHT, _LINE = 0.045, 0.025, 0.19, 0.235  # inches


@dataclass(frozen=True)
class _Chip:
    label: str
    x: float
    line: int
    width: float


class TokenStrip:
    """Tokens with their numbers as colours; the last field is what no token owns, unless None."""

    def __init__(
        self,
        tokens: Sequence[str],
        values: Sequence[float],
        remainder: float | None,
        colours: SignedColours,
        fonts: Fonts,
        width: float,
        read_at: int | None = None,
    ):
        self.values = list(values)
        self.colours, self.fonts, self.read_at = colours, fonts, read_at
        self.size = 8.5 if len(tokens) <= 400 else 6.5
        self.room = width - 2 * MARGIN
        labels = list(tokens)
        if remainder is not None:
            number = signed_number(remainder, decimals(max(colours.largest, abs(remainder))))
            labels.append(f"{NO_TOKEN_WORDS} {number}")
        self.chips = self._laid_out(labels)
        self.height = _LINE * (self.chips[-1].line + 1) + 0.04

    def _laid_out(self, labels: Sequence[str]) -> list[_Chip]:
        chips, x, line = [], 0.0, 0
        for place, label in enumerate(labels):
            shown = self.fonts.cut(label, self.size, self.room - 2 * _PAD)
            width = self.fonts.width(shown, self.size) + 2 * _PAD
            x += 0.08 if place == len(self.values) and x else 0.0
            if x and x + width > self.room:
                x, line = 0.0, line + 1
            chips.append(_Chip(shown, x, line, width))
            x += width + _GAP
        return chips

    def draw(self, sheet: Sheet, y: float) -> None:
        """Draw it with its upper edge at `y` inches."""
        axes = sheet.axes(MARGIN, y, self.room, self.height)
        axes.set(xlim=(0, self.room), ylim=(self.height, 0))
        axes.set(xticks=[], yticks=[])
        axes.axis("off")
        for place, chip in enumerate(self.chips[: len(self.values)]):
            value = self.values[place]
            read = place == self.read_at
            edge, width = (INK, 1.1) if read else (FRAME, 0.3)
            fill, ink = self.colours.of(value), self.colours.ink(value)
            self._chip(axes, chip, fill, ink, edgecolor=edge, linewidth=width)
        style = {"edgecolor": FAINT, "linewidth": 0.6, "linestyle": (0, (3, 2))}
        for chip in self.chips[len(self.values) :]:
            self._chip(axes, chip, "white", INK, **style)

    def _chip(self, axes: Any, chip: _Chip, fill: Any, ink: str, **edge: Any) -> None:
        from matplotlib.patches import Rectangle

        y = chip.line * _LINE + 0.02
        axes.add_patch(
            Rectangle((chip.x, y), chip.width, _HEIGHT, facecolor=fill, clip_on=False, **edge)
        )
        axes.text(
            chip.x + chip.width / 2,
            y + _HEIGHT / 2,
            self.fonts.drawable(chip.label),
            ha="center",
            va="center_baseline",
            color=ink,
            fontproperties=self.fonts.properties(self.size),
            parse_math=False,
        )
