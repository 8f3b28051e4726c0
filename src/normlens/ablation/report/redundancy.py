"""The verdict: FF's change of the map is cancelled behind it, so can FF go?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.ablation.report.evidence import AblationEvidence
from normlens.ablation.report.outcomes import Cost, verdict_cost
from normlens.ablation.report.rows import rows_of
from normlens.ablation.report.scales import scale_changes
from normlens.ablation.report.ways import SHORT, taken, ways
from normlens.corpus.measures.tokens import feed_forward_pair
from normlens.figures.canvas import COLOURS, FAINT
from normlens.reports import words
from normlens.reports.base import Experiment, Figure, Result, Table
from normlens.reports.drawing import layer_ticks, legend, panels, style
from normlens.reports.formatting import signed
from normlens.scopes import layers_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

EXPERIMENT = Experiment(
    name="redundancy",
    title="Cancelled, so redundant?",
    source="the “redundancy” of Kobayashi et al. 2024, sections 4 and 6; no published losses exist",
    question="Where RES2 and LN2 cancel FF's change of the map: can FF go?",
    method=(
        "FF's change of the map is cancelled in a layer where the map at the layer's end is "
        "nearer to the one before FF than FF's own output is; the undone share is "
        "1 − (1 − ρ at the end) / (1 − ρ behind FF). If cancelled meant redundant, taking FF away "
        "there would cost nothing: the 95 % interval of its cost would include 0. The cost is that "
        "of the least harmful way of taking FF away (nothing, its mean, or another token's vector "
        "in its place). ATTN in the same layers is the yardstick."
    ),
    absent="the layers have no FF with a map before and behind it, or FF was not ablated by layer",
)


def redundancy(evidence: AblationEvidence) -> Result | None:
    """FF's cancelled change beside what FF is worth, layer by layer, and a verdict."""
    pair = feed_forward_pair(evidence.scopes)
    way = next(iter(ways(evidence.changes)), None)
    if pair is None or way is None:
        return None
    cost = verdict_cost(evidence)
    last = [scope for scope in evidence.scopes if scope.endswith("-N")][-1]
    table = layer_table(
        evidence.similarity(*pair).mean(),
        evidence.similarity(pair[0], last).mean() if last != pair[1] else None,
        taken(cost.changes, way),
    )
    if table.empty:
        return None
    digits = dict.fromkeys(("FF", "low", "high", "ATTN"), f"+.{cost.digits}f")
    ratios = dict.fromkeys(("ρ behind FF", "ρ at the end", "undone share"), ".2f")
    return Result(
        tables={
            "redundancy": Table(
                table,
                "Per layer: ρ with the map before FF, the share of FF's change that is undone, and "
                f"the cost ({cost.name}, {cost.unit}; {SHORT[way]} ablation) of FF with its 95 % "
                "interval, and of ATTN.",
                {**digits, **ratios},
            )
        },
        figures={
            "redundancy": Figure(
                lambda: _draw(table, cost),
                "Left: the share of FF's change of the map that is undone at the end of the layer. "
                f"Right: what taking FF away costs ({cost.unit}), and ATTN for comparison.",
            )
        },
        sentences=[
            *verdict(table, cost.name, cost.has_zero, cost.digits),
            *_together(taken(cost.changes, way, each=False), cost),
        ],
    )


def layer_table(behind: pd.Series, end: pd.Series | None, rows: pd.DataFrame) -> pd.DataFrame:
    """A row per layer in which FF was ablated and has a map before and behind it."""
    block = rows[rows["component"] == "FF"].set_index("layer")
    attention = rows[rows["component"] == "ATTN"].set_index("layer")["change"]
    layers = [layer for layer in block.index if np.isfinite(behind.get(layer, np.nan))]
    table = pd.DataFrame(
        {
            "layer": [int(layer) for layer in layers],
            "ρ behind FF": [float(behind[layer]) for layer in layers],
            "ρ at the end": [np.nan if end is None else float(end[layer]) for layer in layers],
        }
    )
    if table.empty:
        return table
    change = 1 - table["ρ behind FF"]
    left = 1 - table["ρ at the end"]
    table["undone share"] = (1 - left / change).where(change > 0)
    for name in ("change", "low", "high"):
        table["FF" if name == "change" else name] = block.loc[layers, name].to_numpy()
    table["ATTN"] = attention.reindex(layers).to_numpy()
    return table


def verdict(table: pd.DataFrame, name: str, has_zero: bool, digits: int) -> list[str]:
    """Say whether a cancelled change means that FF can go, from the numbers of `layer_table`."""
    cancelled = table[table["undone share"] > 0].dropna(subset=["FF"])
    if cancelled.empty:
        return [
            "In no layer is FF's change of the map undone behind it, so that there is no "
            "redundancy to judge here."
        ]
    where = layers_in_words(cancelled["layer"])
    share = words.fixed(float(100 * cancelled["undone share"].mean()), 0)
    first = (
        f"What follows FF undoes its change of the map in {where} of {len(table)} "
        f"({share} % of it on average)."
    )
    top = cancelled.loc[cancelled["FF"].idxmax()]
    largest = f"{signed(top['FF'], digits)} in layer {int(top['layer'])}"
    sentences = [first]
    if has_zero:
        dear = cancelled[cancelled["low"] > 0]
        if len(dear) == len(cancelled):
            text = "No, cancelled does not mean redundant: in every one of these layers"
        elif len(dear):
            text = (
                "No, cancelled does not mean redundant: in "
                f"{layers_in_words(dear['layer'])} of these {len(cancelled)}"
            )
        else:
            return [
                *sentences,
                "As far as these sequences show, FF can go there, one layer at a time: in none of "
                f"these layers does taking it away harm the {name} beyond chance (at most "
                f"{largest}; intervals reach up to {signed(cancelled['high'].max(), digits)}).",
            ]
        sentences.append(
            f"{text}, taking FF away harms the {name} beyond chance, by up to {largest}: the map "
            "looks as before, and the vectors do not carry the same."
        )
    else:
        mean = signed(float(cancelled["FF"].mean()), digits)
        sentences.append(
            f"Taking FF away there moves the {name} by {mean} on average, and by up to {largest}; "
            "a drift can only grow, so this alone does not say what it costs a task: pairs with "
            "gold scores would."
        )
    both = cancelled.dropna(subset=["ATTN"])
    if len(both):
        more = both[both["FF"] > both["ATTN"]]
        sentences.append(
            f"FF costs more than ATTN of the same layer in {len(more)} of these {len(both)} "
            f"{'layer' if len(both) == 1 else 'layers'}."
        )
    if len(cancelled) > 3:
        order = cancelled[["undone share", "FF"]].corr(method="spearman").iloc[0, 1]
        if order == order:
            sentences.append(
                "Over them, the undone share and FF's cost have Spearman's "
                f"ρ = {words.fixed(float(order))}: redundancy would make it negative."
            )
    return sentences


def _together(rows: pd.DataFrame, cost: Cost) -> list[str]:
    """What taking FF away in several layers at once costs."""
    found = [row for row in rows_of(rows) if row.component == "FF" and row.change == row.change]
    return [
        f"Without FF in all {len(row.layers.split(','))} layers at once, the {cost.name} "
        f"{cost.moves} {row.text(cost.digits)}."
        for row in found
    ]


def _draw(table: pd.DataFrame, cost: Cost) -> Drawing:
    figure, (left, right) = panels(2, 1, width=3.6, height=2.6)
    left.bar(table["layer"], table["undone share"].clip(lower=-1), color=COLOURS[0], width=0.7)
    left.axhline(0, color=FAINT, lw=0.6)
    style(left, x=words.LAYER, y="undone share of FF's change")
    ends = [(table["FF"] - table["low"]).clip(lower=0), (table["high"] - table["FF"]).clip(lower=0)]
    right.errorbar(
        table["layer"], table["FF"], yerr=ends, fmt="o", ms=4, lw=1, color=COLOURS[1], label="FF"
    )
    if table["ATTN"].notna().any():
        right.plot(table["layer"], table["ATTN"], "s", ms=3.5, color=COLOURS[0], label="ATTN")
    right.axhline(0, color=FAINT, lw=0.6)
    scale_changes(right, table[["FF", "low", "high", "ATTN"]])
    style(right, x=words.LAYER, y=f"{cost.symbol} ({cost.unit})")
    legend(right)
    for panel in (left, right):
        layer_ticks(panel, int(table["layer"].max()))
    return figure
