"""What Figures 7 and 8 share: colours, letters of panels and the legend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normlens.figures.canvas import COLOURS, FAINT
from normlens.papers.kobayashi2024.related_pairs.findings import ALPHA
from normlens.reports.drawing import SMALL

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

FF_AMP = "FF-amp"
RELATED, OTHERS = COLOURS[1], COLOURS[0]
WIDTH = 6.9  # inches


def letter(place: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[place % 26]


def legend(figure: Drawing, significance: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = ("related pairs (as titled)", "other pairs")
    handles: list[Any]
    if significance:
        handles = [
            Line2D([], [], color=colour, marker=marker, ms=4, lw=1.2, label=name)
            for name, colour, marker in zip(names, (RELATED, OTHERS), "os", strict=True)
        ]
        for label, fill in ((f"significant (p < {ALPHA})", FAINT), ("not significant", "white")):
            handles.append(
                Line2D([], [], ls="none", marker="o", ms=4, mec=FAINT, mfc=fill, label=label)
            )
    else:
        handles = [
            Patch(facecolor=colour, alpha=0.5, label=name)
            for name, colour in zip(names, (RELATED, OTHERS), strict=True)
        ]
        handles.append(Line2D([], [], color=FAINT, ls="--", lw=1, label="mean"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        fontsize=SMALL,
        frameon=False,
        handlelength=1.8,
    )
