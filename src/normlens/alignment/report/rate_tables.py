"""Error rates by layer, scope and way: tables, a figure, and who wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from normlens.alignment.error_rates import ErrorRates
from normlens.alignment.options import INPUT, OUTPUT, WAYS
from normlens.alignment.report.published import comparisons
from normlens.measures.bootstrap import Means
from normlens.reports.base import Experiment, Figure, Result, Table
from normlens.reports.drawing import SMALL, layer_ticks, line, panels, style
from normlens.reports.formatting import signed
from normlens.reports.words import fixed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

EXPERIMENT = Experiment(
    name="alignment",
    title="Word alignment by layer, scope and way",
    source="Kobayashi et al. 2020, section 5",
    question="Which map links the words of a sentence and its translation best?",
    method=(
        "For each target word the source word with the largest score: source subwords are summed, "
        "target subwords averaged, and there is no link if a special token has a larger score. By "
        "input (AWI) the row is read whose input is the word, by output (AWO) the row that "
        "predicts it. AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), over all pairs together; intervals "
        "are the percentile bootstrap's over sentence pairs. The best map was chosen on the pairs "
        "that it is measured on."
    ),
)
WAY_WORDS = {INPUT: "by input (AWI)", OUTPUT: "by output (AWO)"}
_RATES = ("aer", "precision", "recall")


def per_cent(rates: pd.DataFrame) -> pd.DataFrame:
    """The rates and their intervals in per cent, layers from 1."""
    shown = rates.copy()
    for name in _RATES:
        for column in (name, f"{name}_low", f"{name}_high"):
            shown[column] *= 100
    shown["layer"] += 1
    return shown


def of_maps(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of maps of all heads together, without contributions to logits."""
    return table[(table["head"] < 0) & (table["layer"] >= 0)]


def rate_result(rates: ErrorRates) -> Result:
    """Every map's error rates, heads together."""
    table = per_cent(of_maps(rates.table))
    tables = {
        f"aer-{way}": _wide(table[table["way"] == way], way)
        for way in WAYS
        if (table["way"] == way).any()
    }
    columns = ["scope", "way", "layer"]
    columns += [name for rate in _RATES for name in (rate, f"{rate}_low", f"{rate}_high")]
    tables["alignment-rates"] = Table(
        table[[*columns, "best"]].reset_index(drop=True),
        "AER, precision and recall in per cent, with 95 % intervals.",
        dict.fromkeys(columns[3:], ".1f"),
    )
    return Result(
        tables=tables,
        figures={"aer-layers": _figure(table)},
        sentences=_sentences(rates),
        comparisons=comparisons(rates.table),
        summary={
            f"AER {way}, {scope}, best layer": float(some["aer"].min())
            for (way, scope), some in table.groupby(["way", "scope"], sort=False)
        },
    )


def _wide(table: pd.DataFrame, way: str) -> Table:
    wide = table.pivot(index="scope", columns="layer", values="aer")
    wide = wide.reindex(table["scope"].unique())
    wide.columns = [f"layer {layer}" for layer in wide.columns]
    return Table(
        wide.reset_index(),
        f"AER {WAY_WORDS[way]} in per cent; layers counted from 1.",
        dict.fromkeys(wide.columns, ".1f"),
        open=True,
    )


def _sentences(rates: ErrorRates) -> list[str]:
    table = of_maps(rates.table)
    sentences = []
    for way in WAYS:
        some = table[table["way"] == way]
        if some.empty:
            continue
        best = some.loc[some["aer"].idxmin()]
        sentences.append(
            f"The best map {WAY_WORDS[way]} is {best['scope']} of layer {best['layer'] + 1}: "
            f"AER {with_interval(best)}, precision {fixed(100 * best['precision'], 1)}, recall "
            f"{fixed(100 * best['recall'], 1)}."
        )
        weights = some[some["scope"] == "CROSS-W"]
        others = some[some["scope"] != "CROSS-W"]
        if weights.empty or others.empty:
            continue
        plain, other = weights["aer"].idxmin(), others["aer"].idxmin()
        change = rates.difference(int(plain), int(other))
        chance = change.low[0] <= 0 <= change.high[0] or change.low[0] != change.low[0]
        sure = "" if chance else ", which chance does not explain"
        sentences.append(
            f"Against the best map of weights (layer {weights.loc[plain, 'layer'] + 1}, "
            f"{with_interval(weights.loc[plain])}) that is {in_points(change)}{sure}."
        )
    return sentences


def with_interval(row: pd.Series) -> str:
    """An error rate in per cent, with its interval where there is one."""
    text = fixed(100 * row["aer"], 1)
    if row["aer_low"] != row["aer_low"]:
        return text
    return f"{text} ({fixed(100 * row['aer_low'], 1)} to {fixed(100 * row['aer_high'], 1)})"


def in_points(change: Means) -> str:
    """A difference of error rates in points, with its interval where there is one."""
    mean, low, high = (100 * float(part[0]) for part in change)
    text = f"{signed(mean, 1)} points"
    return text if low != low else f"{text} ({signed(low, 1)} to {signed(high, 1)})"


def _figure(table: pd.DataFrame) -> Figure:
    return Figure(
        lambda: _draw(table),
        "AER by layer, one line per scope; bands are 95 % bootstrap intervals over sentence pairs. "
        "Lower is better.",
    )


def _draw(table: pd.DataFrame) -> Drawing:
    ways = [way for way in WAYS if (table["way"] == way).any()]
    figure, axes = panels(len(ways), width=4.2, height=3.9, sharey=True)
    scopes = list(table["scope"].unique())
    for panel, way in zip(axes, ways, strict=True):
        for place, scope in enumerate(scopes):
            some = table[(table["way"] == way) & (table["scope"] == scope)].sort_values("layer")
            bands = some["aer_low"].fillna(some["aer"]), some["aer_high"].fillna(some["aer"])
            line(panel, some["layer"], some["aer"], *bands, place, scope)
        layer_ticks(panel, int(table["layer"].max()))
        first = panel is axes[0]
        style(panel, x="layer", y="AER (%)" if first else "", title=WAY_WORDS[way])
        panel.set_ylim(0, 100)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, fontsize=SMALL, frameon=False
    )
    return figure
