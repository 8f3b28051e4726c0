"""Curves of removals, what the methods cost, and all protocols at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.figures.canvas import COLOURS, MARKERS
from normlens.measures.bootstrap import LEAST_EXAMPLES
from normlens.studies.faithfulness.report.ranking import (
    NORMLENS,
    PASSES,
    PRIORS,
    Ranking,
    averages,
    curves_query,
    intact,
)
from normlens.studies.faithfulness.tables import LEAST, MOST
from normlens.studies.reports.contents import Evidence, Experiment, Figure, Result, Table
from normlens.studies.reports.drawing import GREY, SMALL, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# One colour, marker and dash per method, the same in every figure of a report.


_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
# Black and the second blue are hard to tell from other lines where many cross.
_HUES = COLOURS[:6]
Styles = Mapping[str, Mapping[str, Any]]


def method_styles(methods: Sequence[str]) -> Styles:
    """Colour, marker, dash and width of each method, as Matplotlib's keywords; priors are grey."""
    styles: dict[str, dict[str, Any]] = {
        "first-token": {"color": GREY, "marker": "+", "ls": _DASHES[1], "lw": 1.1},
        "random": {"color": GREY, "marker": "x", "ls": _DASHES[2], "lw": 1.1},
    }
    informed = sorted(
        set(methods).difference(PRIORS), key=lambda name: (name != NORMLENS, methods.index(name))
    )
    for place, name in enumerate(informed):
        styles[name] = {
            "color": _HUES[place % len(_HUES)],
            "marker": MARKERS[place % len(MARKERS)],
            "ls": _DASHES[place // len(_HUES) % len(_DASHES)],
            "lw": 2.0 if name == NORMLENS else 1.1,
        }
    return styles


# All protocols at a glance: every method's value in each.


OVERVIEW = Experiment(
    name="overview",
    title="All protocols at a glance",
    source="means of the sections below",
    question="Which method is the most faithful?",
    method="Means over examples; each protocol's section has intervals, tests and curves.",
)


def overview(rankings: Sequence[Ranking], methods: Sequence[str]) -> Result:
    """Set every protocol's values beside each other."""
    columns = {
        f"{ranking.protocol}{' (lower is better)' if ranking.words.lower_is_better else ''}": (
            ranking.table.set_index("method")["value"]
        )
        for ranking in rankings
    }
    return Result(
        tables={
            "overview": Table(
                pd.DataFrame(columns).reindex(methods).reset_index(names="method"),
                "Every method's value in every protocol, in the order of the first.",
                dict.fromkeys(columns, ".3f"),
                open=True,
            )
        },
    )


# Score, probability and accuracy against the share of tokens removed: one line per method.


_LEGEND = 1.6  # inches
_TITLES = {MOST: "most important first", LEAST: "least important first"}


@dataclass(frozen=True)
class Curves:
    """Means and intervals of a protocol's points, by quantity, order, method and share."""

    frame: pd.DataFrame  # quantity, first, method, share, value, low, high, examples
    whole: dict[str, float]  # of the whole texts, by quantity


def averaged_curves(evidence: Evidence, ranking: Ranking) -> Curves | None:
    """Average a protocol's points over examples; None where nothing is removed."""
    points = evidence.sql(curves_query(ranking.protocol))
    if points.empty:
        return None
    texts = intact(evidence).set_index("index")
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
        parts.append(averages(wide, ranking.seed).reset_index().assign(quantity=name))
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


def curve_figure(ranking: Ranking, averaged: Curves, styles: Styles) -> Figure:
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
        lambda: draw_curves(ranking, averaged, styles),
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


def draw_curves(ranking: Ranking, averaged: Curves, styles: Styles) -> Drawing:
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
    opacity = min(0.15, 0.8 / len(ranking.methods))  # many bands would hide the lines
    for place, (quantity, first) in enumerate((q, f) for q in quantities for f in orders):
        panel = axes[place]
        some = frame[(frame["quantity"] == quantity) & (frame["first"] == first)]
        # The best method is drawn last, above all others.
        for method in reversed(ranking.methods):
            line = some[some["method"] == method].sort_values("share")
            if line.empty:
                continue
            shown, share = styles[method], 100 * line["share"]
            if line["low"].notna().any():
                panel.fill_between(
                    share, line["low"], line["high"], color=shown["color"], alpha=opacity, lw=0
                )
            panel.plot(share, line["value"], ms=3.2, label=method, **shown)
        if quantity in averaged.whole:
            panel.axhline(averaged.whole[quantity], color=GREY, lw=0.6, ls=":", zorder=0)
        bottom = place >= len(orders) * (len(quantities) - 1)
        style(
            panel,
            x=f"tokens {ranking.words.axis} (%)" if bottom else "",
            y=""
            if place % len(orders)
            else quantity
            if quantity == "accuracy"
            else ranking.words.label,
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


# What each method costs: passes through the model, and time against one forward pass.


INTACT, METHOD = "intact", "method "  # stages in the records of shards
TIME = "time / forward pass"

COSTS = Experiment(
    name="costs",
    title="What the methods cost",
    source="the run's own passes and seconds",
    question="What does a score per token cost?",
    method="Passes are counted layer by layer while a method works on a text: a row of a batch "
    "that goes through all layers is one forward pass, and one that gradients flow back through is "
    "one backward pass; what is pushed through the frozen network counts alike. Seconds are summed "
    "over the run's shards and divided by those of the first pass over the whole texts, on the "
    "same machine in the same run; they say how long this run took and not how fast a method could "
    "be.",
    absent="the run counted no passes",
)


def costs(evidence: Evidence, ranking: Ranking, styles: Styles) -> Result | None:
    """Set passes and times beside each other, cheapest first, and draw values against passes."""
    table = evidence.sql(PASSES)
    if table.empty:
        return None
    table[TIME] = table["method"].map(relative_times(evidence)).astype(float)
    table["passes"] = table["forward"] + table["backward"]
    table = table.sort_values(["passes", "method"], ignore_index=True)
    return Result(
        tables={
            "costs": Table(
                table[["method", "forward", "backward", TIME, "texts"]],
                "Forward and backward passes per text, averaged over texts, and seconds as a "
                "multiple of one forward pass of the whole text.",
                {"forward": ".1f", "backward": ".1f", TIME: ".1f"},
                open=True,
            )
        },
        figures={
            "costs": Figure(
                lambda: draw_costs(ranking, table.set_index("method")["passes"], styles),
                f"{ranking.words.title}: value against passes through the model (forward and "
                "backward together) per text.",
            )
        },
    )


def relative_times(evidence: Evidence) -> dict[str, float]:
    """Divide each method's seconds by those of the pass over the whole texts."""
    assert evidence.run is not None
    stages = evidence.run.status().stages
    once = stages.get(INTACT, 0.0)
    if not once:
        return {}
    return {
        name.removeprefix(METHOD): seconds / once
        for name, seconds in stages.items()
        if name.startswith(METHOD)
    }


def draw_costs(ranking: Ranking, passes: pd.Series, styles: Styles) -> Drawing:
    """Draw each method's value against its passes, on a scale that has room for 0."""
    figure, (panel,) = panels(width=5.6, height=3.0)
    for method in ranking.methods:
        if method not in passes:
            continue
        row, shown = ranking.row(method), {**styles[method], "ls": "none"}
        x = float(passes[method])
        if row["low"] == row["low"]:
            panel.vlines(x, row["low"], row["high"], color=shown["color"], lw=0.9)
        panel.plot([x], [row["value"]], ms=5, label=method, **shown)
    panel.set_xscale("symlog", linthresh=1)
    ticks = [tick for tick in (0, 1, 3, 10, 30, 100, 300, 1000) if tick <= 2 * passes.max()]
    panel.set_xticks(ticks, map(str, ticks))
    panel.minorticks_off()
    panel.set_xlim(left=-0.3)
    style(panel, x="passes per text", y=ranking.words.value)
    figure.legend(loc="outside right upper", fontsize=SMALL, frameon=False)
    return figure
