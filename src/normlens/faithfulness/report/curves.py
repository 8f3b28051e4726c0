"""Score, probability and accuracy against the share of tokens removed: one line per method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.faithfulness.report import queries
from normlens.faithfulness.report.method_colours import MethodColours
from normlens.faithfulness.report.protocol_words import LEAST, MOST
from normlens.faithfulness.report.ranking import RESAMPLES, Ranking
from normlens.measures.bootstrap import LEAST_EXAMPLES, mean_intervals
from normlens.reports.base import Evidence, Figure, Table
from normlens.reports.drawing import GREY, SMALL, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_LEGEND = 1.6  # inches
_TITLES = {MOST: "most important first", LEAST: "least important first"}


@dataclass(frozen=True)
class Curves:
    """Means and intervals of a protocol's points, by quantity, order, method and share."""

    frame: pd.DataFrame  # quantity, first, method, share, value, low, high, examples
    whole: dict[str, float]  # of the whole texts, by quantity


def curves(evidence: Evidence, ranking: Ranking) -> Curves | None:
    """Average a protocol's points over examples; None where nothing is removed."""
    points = queries.curve_points(evidence, ranking.protocol)
    if points.empty:
        return None
    texts = queries.intact(evidence).set_index("index")
    main = ranking.words.falls
    quantities = {main: points[main], "accuracy": points["correct"]}
    whole = {main: texts[main], "accuracy": texts["right_class"]}
    parts = []
    for name, values in quantities.items():
        if not values.notna().any():
            continue
        wide = points.assign(value=values.astype(float)).pivot(
            index="index", columns=["first", "method", "share"], values="value"
        )
        if ranking.words.starts_intact:
            wide = _with_start(wide, whole[name].astype(float))
        parts.append(_averaged(wide, ranking.seed).assign(quantity=name))
    frame = pd.concat(parts, ignore_index=True)
    means = {name: float(column.mean()) for name, column in whole.items() if column.notna().any()}
    return Curves(
        frame[["quantity", "first", "method", "share", "value", "low", "high", "examples"]], means
    )


def _with_start(wide: pd.DataFrame, whole: pd.Series) -> pd.DataFrame:
    """Begin every line with the whole texts, where its protocol has no share of 0."""
    lines = wide.columns.to_frame(index=False).groupby(["first", "method"])["share"].min()
    for first, method in lines[lines > 0].index:
        wide[first, method, 0.0] = whole.reindex(wide.index)
    return wide.sort_index(axis=1)


def _averaged(wide: pd.DataFrame, seed: int) -> pd.DataFrame:
    means = mean_intervals(wide.to_numpy(float), RESAMPLES, seed)
    examples = wide.notna().sum().to_numpy()
    few = examples < LEAST_EXAMPLES
    frame = wide.columns.to_frame(index=False)
    return frame.assign(
        value=means.mean,
        low=np.where(few, np.nan, means.low),
        high=np.where(few, np.nan, means.high),
        examples=examples,
    )


def curve_figure(ranking: Ranking, averaged: Curves, colours: MethodColours) -> Figure:
    """Draw the curves: a column per order of removal, accuracy in a row below."""
    quantities = list(averaged.frame["quantity"].unique())
    label = ranking.words.label
    what = label[0].upper() + label[1:] + (" and accuracy" if len(quantities) > 1 else "")
    examples = int(averaged.frame["examples"].max())
    bands = (
        "bands are 95 % bootstrap intervals over examples"
        if examples >= LEAST_EXAMPLES
        else f"{examples} examples are too few for intervals"
    )
    return Figure(
        lambda: draw_curves(ranking, averaged, colours),
        f"{what} against the share of tokens {ranking.words.axis}, averaged over {examples} "
        f"examples; {bands}. Dotted: the whole texts. Methods in the order of their values.",
    )


def curve_table(ranking: Ranking, averaged: Curves) -> Table:
    """Write the curves' points."""
    return Table(
        averaged.frame,
        f"Points of the curves: means over examples by share of tokens {ranking.words.axis}.",
        {"share": ".2f", "value": ".3f", "low": ".3f", "high": ".3f"},
        shown=40,
    )


def draw_curves(ranking: Ranking, averaged: Curves, colours: MethodColours) -> Drawing:
    frame = averaged.frame
    quantities = list(frame["quantity"].unique())
    orders = [first for first in (MOST, LEAST) if (frame["first"] == first).any()]
    figure, axes = panels(
        len(orders),
        len(quantities),
        width=3.0 + _LEGEND / len(orders),
        height=2.5,
        sharex=True,
        sharey="row",
    )
    labels = {ranking.words.falls: ranking.words.label}
    opacity = min(0.15, 0.8 / len(ranking.methods))  # many bands would hide the lines
    for place, (quantity, first) in enumerate((q, f) for q in quantities for f in orders):
        panel = axes[place]
        some = frame[(frame["quantity"] == quantity) & (frame["first"] == first)]
        # The best method is drawn last, above all others.
        for method in reversed(ranking.methods):
            line = some[some["method"] == method].sort_values("share")
            if line.empty:
                continue
            shown, share = colours.style(method), 100 * line["share"]
            if line["low"].notna().any():
                panel.fill_between(
                    share, line["low"], line["high"], color=shown["color"], alpha=opacity, lw=0
                )
            panel.plot(
                share, line["value"], ms=3.2, lw=colours.width(method), label=method, **shown
            )
        if quantity in averaged.whole:
            panel.axhline(averaged.whole[quantity], color=GREY, lw=0.6, ls=":", zorder=0)
        bottom = place >= len(orders) * (len(quantities) - 1)
        style(
            panel,
            x=f"tokens {ranking.words.axis} (%)" if bottom else "",
            y="" if place % len(orders) else labels.get(quantity, quantity),
            title=_TITLES.get(first, first) if place < len(orders) > 1 else "",
        )
    handles, methods = axes[0].get_legend_handles_labels()
    figure.legend(
        handles[::-1],
        methods[::-1],
        loc="outside right upper",
        fontsize=SMALL,
        frameon=False,
        handlelength=2.6,
    )
    return figure
