"""Curves, costs, an overview of all protocols, and sentences that say who wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.errors import listed
from normlens.figures.canvas import COLOURS, MARKERS
from normlens.measures.bootstrap import LEAST_EXAMPLES, mean_intervals
from normlens.studies.faithfulness.report import ranking as queries
from normlens.studies.faithfulness.report.ranking import (
    HOLM,
    LEAST,
    MOST,
    NORMLENS,
    PRIORS,
    RESAMPLES,
    Differences,
    Ranking,
    significant,
)
from normlens.studies.reports.contents import Evidence, Experiment, Figure, Result, Table
from normlens.studies.reports.drawing import GREY, SMALL, panels, style
from normlens.studies.reports.words import count, fixed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# One colour, marker and dash per method, the same in every figure of a report.


_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
# Black and the second blue are hard to tell from other lines where many cross.
_HUES = COLOURS[:6]


class MethodColours:
    """Styles of lines and points, by method."""

    def __init__(self, methods: Sequence[str]):
        named = [NORMLENS] if NORMLENS in methods else []
        named += [name for name in methods if name not in (*PRIORS, NORMLENS)]
        self._places = {name: place for place, name in enumerate(named)}

    def style(self, method: str) -> dict[str, Any]:
        """Colour, marker and dash as Matplotlib's keywords."""
        if method not in self._places:
            dash = _DASHES[1 + (method == "random")]
            return {"color": GREY, "marker": "x" if method == "random" else "+", "ls": dash}
        place = self._places[method]
        return {
            "color": _HUES[place % len(_HUES)],
            "marker": MARKERS[place % len(MARKERS)],
            "ls": _DASHES[place // len(_HUES) % len(_DASHES)],
        }

    def width(self, method: str) -> float:
        return 2.0 if method == NORMLENS else 1.1


# Sentences that say who wins a protocol, by how much, and whether chance explains it.


_SMALL = 0.005  # differences below have one more digit
_ORDINALS = {1: "first", 2: "second", 3: "third"}


def verdict(ranking: Ranking, differences: Differences) -> list[str]:
    """Say what a protocol's tables show."""
    sentences = [_lead(ranking, differences)]
    if len(ranking.methods) > 1 and ranking.certain:
        sentences.append(_rival(ranking, differences))
        sentences.append(_reach(ranking.methods[0], ranking, differences))
        if NORMLENS in ranking.methods[1:]:
            sentences += [_place(ranking, differences), _reach(NORMLENS, ranking, differences)]
    sentences += [_priors(ranking), _least_first(ranking), _without_value(ranking)]
    return [sentence for sentence in sentences if sentence]


def with_interval(row: pd.Series, value: str = "value") -> str:
    """Write a value with its interval: 0.538 [0.520, 0.556]."""
    low, high = ("low", "high") if value in ("value", "difference") else _ends(value)
    digits = 4 if value == "difference" and abs(row[value]) < _SMALL else 3
    text = fixed(row[value], digits)
    if row[low] != row[low]:
        return text
    return f"{text} [{fixed(row[low], digits)}, {fixed(row[high], digits)}]"


def _ends(value: str) -> tuple[str, str]:
    return f"{value} low", f"{value} high"


def adjusted_p(row: pd.Series) -> str:
    p = float(row[HOLM])
    return "Holm-adjusted p " + ("< 0.001" if p < 0.001 else f"= {p:.3f}")


def _lead(ranking: Ranking, differences: Differences) -> str:
    winner, *others = ranking.methods
    value = with_interval(ranking.row(winner))
    value += " (lower is better)" if ranking.words.lower_is_better else ""
    if not others:
        return f"{winner} is the only method, with {value}."
    prior = ", a prior that does not look at the model," if winner in PRIORS else ""
    after = with_interval(ranking.row(others[0]))
    if not ranking.certain:
        return (
            f"{winner}{prior} has the best value, {value}, before {others[0]} with {after}; "
            f"{count(ranking.examples, 'example')} are too few for an interval or a test "
            f"(at least {LEAST_EXAMPLES})."
        )
    row = differences.between(winner, others[0])
    by = f"{with_interval(row, 'difference')}, {adjusted_p(row)}"
    if significant(row):
        return f"{winner}{prior} leads with {value}; the next is {others[0]}, difference {by}."
    return (
        f"{winner}{prior} has the best value, {value}, but its lead over {others[0]} ({after}) is "
        f"not significant: difference {by}."
    )


def _rival(ranking: Ranking, differences: Differences) -> str:
    """Compare the winner with the best of another family, where the next is of its own."""
    winner, after = ranking.methods[:2]
    rival = ranking.rival
    if rival in (None, after):
        return ""
    row = differences.between(winner, str(rival))
    sure = "" if significant(row) else ", which is not significant"
    return (
        f"{after} is another rule of the same frozen network; of all other methods {rival} is the "
        f"best, difference {with_interval(row, 'difference')}, {adjusted_p(row)}{sure}."
    )


def _reach(method: str, ranking: Ranking, differences: Differences) -> str:
    """Say which other methods a method is significantly better than, and worse than."""
    rows = differences.of(method)
    sign = -1 if ranking.words.lower_is_better else 1
    sure = [significant(row) for _, row in rows.iterrows()]
    better = sign * rows["difference"] > 0
    behind = list(rows["against"][[s and not b for s, b in zip(sure, better, strict=True)]])
    open_ = list(rows["against"][[not s for s in sure]])
    ahead = len(rows) - len(behind) - len(open_)
    all_ = "the only other method" if len(rows) == 1 else f"all {len(rows)} other methods"
    if ahead == len(rows):
        return f"{method} is significantly better than {all_}."
    parts = [f"significantly better than {ahead} of {count(len(rows), 'other method')}"]
    parts += [f"significantly worse than {listed(behind)}"] if behind else []
    parts += [f"not significantly different from {listed(open_)}"] if open_ else []
    return f"{method} is {listed(parts)}."


def _place(ranking: Ranking, differences: Differences) -> str:
    """Say where NormLens stands if it does not lead."""
    place = ranking.methods.index(NORMLENS) + 1
    winner = ranking.methods[0]
    row = differences.between(winner, NORMLENS)
    named = _ORDINALS.get(place, f"number {place}")
    sure = "" if significant(row) else ", which is not significant"
    return (
        f"{NORMLENS} is {named} of {len(ranking.methods)} with "
        f"{with_interval(ranking.row(NORMLENS))}; {winner} differs from it by "
        f"{with_interval(row, 'difference')} ({adjusted_p(row)}){sure}."
    )


def _priors(ranking: Ranking) -> str:
    """Name the methods that do not look at the model, with their values."""
    priors = [name for name in PRIORS if name in ranking.methods]
    if not priors or len(priors) == len(ranking.methods):
        return ""
    values = listed([f"{name} {with_interval(ranking.row(name))}" for name in priors])
    noun = "The prior" if len(priors) == 1 else "The priors"
    verb = "does" if len(priors) == 1 else "do"
    return f"{noun}, which {verb} not look at the model: {values}."


def _least_first(ranking: Ranking) -> str:
    name = "least first"
    if name not in ranking.table:
        return ""
    lower = ranking.words.better_with(LEAST) == "lower"
    best = ranking.table.sort_values(name, ascending=lower, kind="stable").iloc[0]
    return (
        f"With the least important tokens first {'lower' if lower else 'higher'} is better: "
        f"{best['method']} has {with_interval(best, name)}."
    )


def _without_value(ranking: Ranking) -> str:
    missing = int(ranking.values.isna().all(axis=1).sum())
    if not missing:
        return ""
    verb = "has" if missing == 1 else "have"
    return f"{count(missing, 'example')} {verb} no value in this protocol."


# All protocols at a glance: every method's value in each, and who wins.


OVERVIEW = Experiment(
    name="overview",
    title="All protocols at a glance",
    source="means of the sections below",
    question="Which method is the most faithful?",
    method="Means over examples; each protocol's section has intervals, tests and curves.",
)


def overview(rankings: Sequence[Ranking], differences: Sequence[Differences]) -> Result:
    """Set every protocol's values beside each other."""
    columns = {
        f"{ranking.protocol}{' (lower is better)' if ranking.words.lower_is_better else ''}": (
            ranking.table.set_index("method")["value"]
        )
        for ranking in rankings
    }
    table = pd.DataFrame(columns).reindex(rankings[0].methods)
    others = [name for ranking in rankings for name in ranking.methods if name not in table.index]
    table = pd.DataFrame(columns).reindex([*table.index, *dict.fromkeys(others)])
    return Result(
        tables={
            "overview": Table(
                table.reset_index(names="method"),
                "Every method's value in every protocol, in the order of the first.",
                dict.fromkeys(columns, ".3f"),
                open=True,
            )
        },
        sentences=[
            _winner(ranking, compared)
            for ranking, compared in zip(rankings, differences, strict=True)
        ],
    )


def _winner(ranking: Ranking, differences: Differences) -> str:
    winner, *others = ranking.methods
    best = f"In {ranking.protocol} {winner} is first with {with_interval(ranking.row(winner))}"
    if not others:
        return f"{best}."
    after = f"before {others[0]} with {fixed(ranking.row(others[0])['value'], 3)}"
    if not ranking.certain:
        return f"{best}, {after} (too few examples for a test)."
    sure = significant(differences.between(winner, others[0]))
    return f"{best}, {after} ({'significant' if sure else 'not significant'})."


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


def costs(evidence: Evidence, rankings: Sequence[Ranking], colours: MethodColours) -> Result | None:
    """Set passes and times beside each other, cheapest first."""
    table = queries.passes(evidence)
    if table.empty:
        return None
    times = relative_times(evidence)
    table[TIME] = [times.get(method, float("nan")) for method in table["method"]]
    table["passes"] = table["forward"] + table["backward"]
    table = table.sort_values(["passes", "method"], ignore_index=True)
    shown = table[["method", "forward", "backward", TIME, "texts"]]
    figures = {}
    if rankings:
        ranking = rankings[0]
        figures["costs"] = Figure(
            lambda: draw_costs(ranking, table, colours),
            f"{ranking.words.title}: value against passes through the model (forward and backward "
            "together) per text.",
        )
    return Result(
        tables={
            "costs": Table(
                shown,
                "Forward and backward passes per text, averaged over texts, and seconds as a "
                "multiple of one forward pass of the whole text.",
                {"forward": ".1f", "backward": ".1f", TIME: ".1f"},
                open=True,
            )
        },
        figures=figures,
        sentences=_sentences(table),
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


def _sentences(table: pd.DataFrame) -> list[str]:
    model_bound = table[table["passes"] > 0]
    if len(model_bound) < 2:
        return []
    passes = model_bound["passes"]
    fewest, most = passes.min(), passes.max()
    cheapest = list(model_bound["method"][passes == fewest])
    dearest = list(model_bound["method"][passes == most])
    sentences = [
        f"Of the methods that run the model, {listed(cheapest)} need"
        f"{'s' if len(cheapest) == 1 else ''} the fewest passes ({fixed(fewest, 1)} per text) and "
        f"{listed(dearest)} the most ({fixed(most, 1)})."
    ]
    timed = model_bound[model_bound[TIME].notna()].sort_values(TIME)
    if len(timed) > 1:
        quick, slow = timed.iloc[0], timed.iloc[-1]
        sentences.append(
            f"The quickest of them is {quick['method']}, which took as long as "
            f"{fixed(quick[TIME], 1)} forward passes, the slowest {slow['method']} with "
            f"{fixed(slow[TIME], 1)}."
        )
    return sentences


def draw_costs(ranking: Ranking, table: pd.DataFrame, colours: MethodColours) -> Drawing:
    """Draw each method's value against its passes, on a scale that has room for 0."""
    figure, (panel,) = panels(width=5.6, height=3.0)
    passes = table.set_index("method")["passes"]
    for method in ranking.methods:
        if method not in passes:
            continue
        row, shown = ranking.row(method), colours.style(method)
        shown["ls"] = "none"
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
