"""What each method costs: passes through the model, and time against one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from normlens.errors import listed
from normlens.faithfulness.report import queries
from normlens.faithfulness.report.method_colours import MethodColours
from normlens.faithfulness.report.ranking import Ranking
from normlens.reports.base import Evidence, Experiment, Figure, Result, Table
from normlens.reports.drawing import SMALL, panels, style
from normlens.reports.words import fixed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

INTACT, METHOD = "intact", "method "  # stages in the records of shards
TIME = "time / forward pass"

EXPERIMENT = Experiment(
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
