"""Pictures of related pairs beside others: Kobayashi et al. 2024, Figures 7 and 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.measures.scope_pairs import ScopePair
from normlens.papers import words
from normlens.papers.base import Figure
from normlens.papers.drawing import COLOURS, FAINT, SMALL, TEXT, layer_ticks, panels, style
from normlens.papers.experiments.differences import ALPHA, Finding, strongest
from normlens.wording import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

BINS = (10, 40)  # of a histogram, at least and at most
_FF_AMP = "FF-amp"
_TARGET, _OTHERS = COLOURS[1], COLOURS[0]
_WIDTH = 6.9  # inches
_DEEP = 16  # layers, above which markers are smaller
_SIDES = ("as in the paper", "all occurrences")


def lines_figure(rows: Sequence[Finding], pair: ScopePair, amp: str) -> Figure:
    """Means per layer of each kind of pairs and of others, in the paper's way and over all."""
    names = listed([relation.label for relation in rows])
    near = any(relation.near for relation in rows)
    return Figure(
        lambda: _draw_lines(rows, amp),
        f"Mean {amp} ({pair[0]} to {pair[1]}) of {names}, and of other pairs at the same distance"
        + (" (for adjacent pairs: of pairs further apart)" if near else "")
        + ". Left: the paper's procedure"
        + (" (Figure 7)" if amp == _FF_AMP else "")
        + ", pairs of subword types and one draw of others, with 95 % bootstrap intervals over "
        "pairs. Right: all occurrences against all others, reweighted by distance, with 95 % "
        f"bootstrap intervals over sequences. Filled: significant, p < {rows[0].threshold}.",
    )


def _draw_lines(rows: Sequence[Finding], amp: str) -> Drawing:
    depth = max(int(relation.robust["layer"].max()) for relation in rows)
    figure, axes = panels(2, len(rows), width=_WIDTH / 2, height=1.9, sharey="row")
    for place, relation in enumerate(rows):
        for side, frame in enumerate((relation.paper, relation.robust)):
            panel = axes[2 * place + side]
            _draw_panel(panel, frame, small=depth > _DEEP)
            layer_ticks(panel, depth)
            style(
                panel,
                x=words.LAYER,
                y="" if side else _axis(amp),
                title=f"({_letter(2 * place + side)}) {relation.label}: {_SIDES[side]}",
            )
    _legend(figure, significance=True)
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
    for name, colour, marker in (("others", _OTHERS, "s"), ("mean", _TARGET, "o")):
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


def _letter(place: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[place % 26]


def _first_column(axes: list[Any]) -> list[Any]:
    return [panel for panel in axes if panel.get_subplotspec().is_first_col()]


def _axis(amp: str) -> str:
    return f"mean {amp}" if amp.endswith("-amp") else "mean amplification"


def _legend(figure: Drawing, significance: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = ("related pairs (as titled)", "other pairs")
    handles: list[Any]
    if significance:
        handles = [
            Line2D([], [], color=colour, marker=marker, ms=4, lw=1.2, label=name)
            for name, colour, marker in zip(names, (_TARGET, _OTHERS), "os", strict=True)
        ]
        for label, fill in ((f"significant (p < {ALPHA})", FAINT), ("not significant", "white")):
            handles.append(
                Line2D([], [], ls="none", marker="o", ms=4, mec=FAINT, mfc=fill, label=label)
            )
    else:
        handles = [
            Patch(facecolor=colour, alpha=0.5, label=name)
            for name, colour in zip(names, (_TARGET, _OTHERS), strict=True)
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


def histograms_figure(rows: Sequence[Finding], amp: str, layer: int | None) -> Figure | None:
    """Scores that the paper's procedure compares in one layer, else that of largest effect."""
    known = [relation for relation in rows if _row(relation, None) is not None]
    if not known:
        return None
    shown = [relation for relation in known if _row(relation, layer) is not None]
    if layer is None or len(shown) < len(known):
        which = "the layer with the largest effect"
        shown = known
        if layer is not None:
            which += f" (there is no layer {layer}, counted from 1)"
        layer = None
    else:
        which = f"layer {layer} (counted from 1)"
    return Figure(
        lambda: _draw_histograms(shown, amp, layer),
        f"Distribution of {amp} in {which}: related pairs of subword types and others at the same "
        "distance"
        + (" (for adjacent pairs: further apart)" if any(row.near for row in shown) else "")
        + ", one draw, each group's shares adding up to 1; the central 99 % of both together are "
        "shown" + (" (Figure 8)." if amp == _FF_AMP else "."),
    )


def _row(relation: Finding, layer: int | None) -> int | None:
    """The paper's row of a layer, or of the largest effect; None if there is none."""
    if relation.paper is None:
        return None
    if layer is None:
        return strongest(relation.paper)
    places = np.flatnonzero(relation.paper["layer"] == layer)
    return int(places[0]) if len(places) else None


def histogram(
    target: NDArray[np.float64], others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Edges over the central 99 % of both groups, and each group's share per bin."""
    both = np.concatenate([target, others])
    bins = int(np.clip(np.sqrt(min(len(target), len(others))), *BINS))
    edges = np.histogram_bin_edges(both, bins, tuple(np.quantile(both, [0.005, 0.995])))
    shares = [np.histogram(group, edges)[0] / len(group) for group in (target, others)]
    return edges, shares[0], shares[1]


def _grid(rows: Sequence[Finding], height: float) -> tuple[Drawing, list[Any]]:
    columns = len(rows) if len(rows) < 4 else 2
    lines = -(-len(rows) // columns)
    width = _WIDTH / (2 if len(rows) == 1 else columns)
    figure, axes = panels(columns, lines, width=width, height=height)
    for spare in axes[len(rows) :]:
        spare.set_visible(False)
    return figure, axes[: len(rows)]


def _draw_histograms(rows: Sequence[Finding], amp: str, layer: int | None) -> Drawing:
    figure, axes = _grid(rows, 2.2)
    first_column = _first_column(axes)
    for place, (panel, relation) in enumerate(zip(axes, rows, strict=True)):
        row = _row(relation, layer) or 0
        groups = relation.target[:, row], relation.others[:, row]
        edges, *shares = histogram(*groups)
        for share, group, colour in zip(shares, groups, (_TARGET, _OTHERS), strict=True):
            panel.stairs(share, edges, fill=True, color=colour, alpha=0.35)
            panel.stairs(share, edges, color=colour, lw=1)
            panel.axvline(group.mean(), color=colour, ls="--", lw=1)
        panel.locator_params(axis="x", nbins=5)
        style(
            panel,
            x=amp,
            y="share of pairs" if panel in first_column else "",
            title=f"({_letter(place)}) {relation.label},\n"
            f"layer {relation.paper['layer'].iloc[row]} (counted from 1)",
        )
        panel.title.set_fontsize(TEXT)
    _legend(figure, significance=False)
    return figure
