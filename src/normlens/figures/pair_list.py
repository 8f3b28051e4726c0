"""The strongest pairs: numbered in a heat map, spelled out beside it."""

from __future__ import annotations

from typing import Any

from normlens.analysis import Pair
from normlens.figures.canvas import FAINT, INK, LARGEST_TICK, NOTE, TITLE, Sheet
from normlens.figures.captions import signed
from normlens.figures.fonts import Fonts


class Listing:
    """A list of the most strengthened pairs (by number) and most weakened ones (by letter)."""

    def __init__(
        self,
        pairs: tuple[list[Pair], list[Pair]],
        targets: list[str],
        sources: list[str],
        fonts: Fonts,
    ):
        strengthened, weakened = pairs
        self.groups = [
            ("most strengthened", [*zip(map(str, range(1, 100)), strengthened, strict=False)]),
            ("most weakened", [*zip("abcdefghijklmnopqrstuvwxyz", weakened, strict=False)]),
        ]
        self.targets, self.sources = targets, sources
        self.width = 0.25 + max(
            [fonts.width(f"{title} (source → target)", TITLE, "bold") for title, _ in self.groups]
            + [
                0.75 + fonts.width(self._words(pair), LARGEST_TICK)
                for _, marked in self.groups
                for _, pair in marked
            ]
        )

    def _words(self, pair: Pair) -> str:
        return f"{self.sources[pair.source]} → {self.targets[pair.target]}"

    def mark(self, axes: Any, cmap: str, norm: Any, cell: float) -> None:
        from matplotlib import colormaps
        from matplotlib.patches import Rectangle
        from matplotlib.patheffects import withStroke

        small = 72 * cell < 5  # the mark does not fit into its cell
        halo = [withStroke(linewidth=1.5, foreground="white")] if small else []
        for _, marked in self.groups:
            for mark, pair in marked:
                corner = (pair.source - 0.5, pair.target - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=INK, linewidth=0.8))
                red, green, blue, _ = colormaps[cmap](norm(pair.value))
                dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
                axes.annotate(
                    mark,
                    (pair.source, pair.target),
                    xytext=(2.5, 2.5) if small else (0, 0),
                    textcoords="offset points",
                    fontsize=NOTE if small else min(LARGEST_TICK, 72 * cell * 0.7),
                    ha="left" if small else "center",
                    va="bottom" if small else "center_baseline",
                    color="white" if dark and not small else INK,
                    path_effects=halo,
                )

    def draw(self, sheet: Sheet, x: float, y: float) -> None:
        for title, marked in self.groups:
            sheet.text(x, y, f"{title} (source → target)", TITLE, "bold")
            y += 0.2
            if not marked:
                sheet.text(x, y, "none", LARGEST_TICK, color=FAINT)
                y += 0.165
            for mark, pair in marked:
                sheet.text(x, y, mark, LARGEST_TICK)
                sheet.text(x + 0.62, y, signed(pair.value), LARGEST_TICK, ha="right")
                sheet.text(x + 0.75, y, self._words(pair), LARGEST_TICK)
                y += 0.165
            y += 0.12
