"""Figure 7: mean FF-amp of related pairs and of others, layer by layer. Kobayashi et al. 2024."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.corpus.measures.tokens import ScopePair
from normlens.errors import listed
from normlens.figures.canvas import FAINT
from normlens.papers.kobayashi2024.related_pairs.drawing import (
    FF_AMP,
    OTHERS,
    RELATED,
    WIDTH,
    legend,
    letter,
)
from normlens.papers.kobayashi2024.related_pairs.findings import Finding
from normlens.reports import words
from normlens.reports.base import Figure
from normlens.reports.drawing import SMALL, layer_ticks, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_DEEP = 16  # layers, above which markers are smaller


def lines_figure(rows: Sequence[Finding], pair: ScopePair, amp: str) -> Figure:
    """Draw means per layer of each kind of pairs and of others, as in the paper and over all."""
    names = listed([relation.label for relation in rows])
    near = any(relation.near for relation in rows)
    of_paper = rows[0].of_paper
    return Figure(
        lambda: _draw(rows, amp),
        f"Mean {amp} ({pair[0]} to {pair[1]}) of {names}, and of "
        + ("other pairs" if of_paper else "unrelated pairs")
        + " at the same distance"
        + (" (for adjacent pairs: of pairs further apart)" if near else "")
        + (
            ". Others are all pairs that are not of the kind, special tokens included, less those "
            "of one subword, as in the paper"
            if of_paper
            else ""
        )
        + f". Left: {rows[0].procedure}"
        + (" (Figure 7)" if amp == FF_AMP and of_paper else "")
        + ", pairs of subword types and one draw of others, with 95 % bootstrap intervals over "
        "pairs. Right: all occurrences against all others, reweighted by distance, with 95 % "
        f"bootstrap intervals over sequences. Filled: significant, p < {rows[0].threshold}.",
    )


def _draw(rows: Sequence[Finding], amp: str) -> Drawing:
    sides = ("as in the paper" if rows[0].of_paper else "one draw", "all occurrences")
    depth = max(int(relation.robust["layer"].max()) for relation in rows)
    figure, axes = panels(2, len(rows), width=WIDTH / 2, height=1.9, sharey="row")
    for place, relation in enumerate(rows):
        for side, frame in enumerate((relation.paper, relation.robust)):
            panel = axes[2 * place + side]
            _draw_panel(panel, frame, small=depth > _DEEP)
            layer_ticks(panel, depth)
            style(
                panel,
                x=words.LAYER,
                y="" if side else _axis(amp),
                title=f"({letter(2 * place + side)}) {relation.label}: {sides[side]}",
            )
    legend(figure, significance=True)
    return figure


def _draw_panel(panel: Any, frame: pd.DataFrame | None, small: bool) -> None:
    panel.axhline(0, color=FAINT, lw=0.6)
    if frame is None:
        panel.text(
            0.5,
            0.5,
            "too few subword pairs occur often enough",
            transform=panel.transAxes,
            ha="center",
            va="center",
            fontsize=SMALL,
            color=FAINT,
        )
        return
    for name, colour, marker in (("others", OTHERS, "s"), ("mean", RELATED, "o")):
        low, high = frame[f"{name} low"], frame[f"{name} high"]
        panel.fill_between(frame["layer"], low, high, color=colour, alpha=0.25, lw=0)
        panel.plot(frame["layer"], frame[name], color=colour, lw=1.2)
        for filled in (True, False):
            some = frame[frame["significant"] == filled]
            panel.plot(
                some["layer"],
                some[name],
                ls="none",
                marker=marker,
                ms=3 if small else 4,
                mew=0.9,
                mec=colour,
                mfc=colour if filled else "white",
            )


def _axis(amp: str) -> str:
    return f"mean {amp}" if amp.endswith("-amp") else "mean amplification"
