"""The edges of a flow picture: which are drawn, how wide, and what the others carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.figures.signed_colours import sign_colour

CARRIED = 0.95  # of all that flows, by the edges that are drawn
FEW = 100  # edges that are drawn whatever they carry
MOST = 1500  # edges in one picture


@dataclass(frozen=True)
class Edges:
    """The strongest edges of a flow map, weakest first."""

    layer: NDArray[np.intp]
    target: NDArray[np.intp]
    source: NDArray[np.intp]
    value: NDArray[np.floating]
    left_out: int
    share_left_out: float  # of Σ |flow|

    @classmethod
    def of(cls, flow: NDArray[np.floating], most: int = MOST) -> Edges:
        """The fewest edges of a flow map (layer, i, j) that carry most of it."""
        sizes = np.abs(np.nan_to_num(flow)).ravel()
        order = np.argsort(-sizes, kind="stable")
        carried = np.cumsum(sizes[order], dtype=np.float64)
        total = float(carried[-1]) if len(carried) else 0.0
        there = int(np.count_nonzero(sizes))
        needed = int(np.searchsorted(carried, CARRIED * total)) + 1
        count = min(max(needed, FEW), most, there)
        chosen = order[:count][::-1]  # the widest are drawn last
        layer, target, source = np.unravel_index(chosen, flow.shape)
        lost = 1 - float(carried[count - 1]) / total if count else 0.0
        values = flow[layer, target, source]
        return cls(layer, target, source, values, there - count, max(lost, 0.0))

    @property
    def note(self) -> str:
        """What the picture leaves out."""
        if not self.left_out:
            return "Every edge is drawn."
        return (
            f"The {len(self.value)} strongest edges are drawn; the {self.left_out} left out carry "
            f"{100 * self.share_left_out:.1f} % of all that flows (both signs counted)."
        )

    def draw(self, axes: Any, widest: float, largest: float) -> None:
        """Draw curves from (source, layer) to (target, layer + 1), `widest` points at `largest`."""
        from matplotlib.collections import PathCollection
        from matplotlib.path import Path

        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        paths = [
            Path([(j, y), (j, y + 0.5), (i, y + 0.5), (i, y + 1)], codes)
            for y, i, j in zip(self.layer, self.target, self.source, strict=True)
        ]
        widths = np.maximum(widest * np.abs(self.value) / largest, 0.15)
        colours = [sign_colour(float(value)) for value in self.value]
        drawn = PathCollection(
            paths, facecolors="none", edgecolors=colours, linewidths=widths, alpha=0.6, zorder=1
        )
        axes.add_collection(drawn)
