"""Does the map's change predict the loss's, and can FF go where it is cancelled?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import feed_forward_pair
from normlens.errors import listed
from normlens.figures.canvas import COLOURS, FAINT, INK, MARKERS
from normlens.measures.ranks import CellCorrelation, cell_correlation, mean_draws
from normlens.scopes import layers_in_words
from normlens.studies.ablation.report.evidence import (
    SHORT,
    AblationEvidence,
    Cost,
    costs,
    rows_of,
    scale_changes,
    taken,
    verdict_cost,
    ways,
)
from normlens.studies.reports import words
from normlens.studies.reports.contents import Experiment, Figure, Result, Table
from normlens.studies.reports.drawing import SMALL, layer_ticks, legend, panels, style
from normlens.studies.reports.words import signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# The scatter plot of the map's change against the loss's.


def draw_scatter(points: pd.DataFrame, cost: Cost, found: CellCorrelation) -> Drawing:
    """Draw every cell, a colour and a marker per component, its layer beside it where it fits."""
    figure, (axes,) = panels(width=5.4, height=3.6)
    axes.axhline(0, color=FAINT, lw=0.6)
    for place, (component, rows) in enumerate(points.groupby("component", sort=False)):
        ends = np.abs(rows[["low", "high"]].to_numpy().T - rows["change"].to_numpy())
        colour = COLOURS[place % len(COLOURS)]
        axes.errorbar(
            rows["map"],
            rows["change"],
            yerr=np.nan_to_num(ends),
            fmt=MARKERS[place % len(MARKERS)],
            color=colour,
            ms=4,
            lw=0.8,
            label=str(component),
        )
        if len(points) <= 40:
            for layer, x, y in zip(rows["layer"], rows["map"], rows["change"], strict=True):
                axes.annotate(
                    str(int(layer)),
                    (x, y),
                    xytext=(3, 2),
                    textcoords="offset points",
                    fontsize=SMALL - 1,
                    color=colour,
                )
    scale_changes(axes, points[["change", "low", "high"]])
    behind = "1 − ρ of the maps before and behind the component"
    style(axes, x=behind, y=f"{cost.symbol} ({cost.unit})")
    legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title(_title(found), fontsize=SMALL, color=INK, loc="left")
    return figure


def _title(found: CellCorrelation) -> str:
    if found.rho != found.rho:
        return f"{found.cells} cells: too few for a correlation"
    ends = [words.fixed(end) for end in found[2:]]
    return (
        f"Spearman's ρ = {words.fixed(found.rho)} [{ends[0]}, {ends[1]}] over sequences, "
        f"[{ends[2]}, {ends[3]}] over cells"
    )


# Does the change of the map predict the change of the loss? Correlations over cells.


PREDICTION = Experiment(
    name="prediction",
    title="Does the change of the map predict the change of the loss?",
    source="beyond the papers: no published figures exist to compare with",
    question="Over layers and components: is what changes the map most also what the model can "
    "spare least? And what do the strength of FF-amp and the norms of FF's output say?",
    method=(
        "Spearman's ρ over (layer, component) cells between 1 − ρ of the maps before and behind a "
        "component (ATTN's is that of weights and norms, as in Table 1 of Kobayashi et al. 2024) "
        "and the change of the loss where it is taken away. The first interval resamples "
        "sequences, and computes both quantities anew from the same ones; the second resamples "
        "cells. FF-amp's strength is the root mean square of its scores, norms are the ratio of "
        "‖FF output‖ to the norm of what bypasses the block; both exist for FF alone, so that "
        "their cells are layers. With few cells an interval over cells is wide, and rightly so."
    ),
    absent="there are fewer than four cells with both a map's change and a loss's",
)

MAPS, AMP, NORMS = "1 − ρ of the maps", "strength of FF-amp", "‖FF output‖ ÷ ‖bypassed‖"


@dataclass(frozen=True)
class Asked:
    """One correlation: a quantity of maps, over which components, with which ablation's cost."""

    quantity: str
    over: str
    way: str
    cost: str
    found: CellCorrelation


def prediction(evidence: AblationEvidence) -> Result | None:
    """Correlations of 1 − ρ, of FF-amp's strength and of norms with the change of the loss."""
    way = next(iter(ways(evidence.changes)), None)
    asked = list(_correlations(evidence))
    if way is None or not any(one.found.rho == one.found.rho for one in asked):
        return None
    figures = {}
    for suffix, cost in zip(("", "-agreement"), costs(evidence), strict=False):
        points = _points(evidence, cost, way)
        main = next(a for a in asked if (a.over, a.way, a.cost) == ("all", way, cost.name))
        figures[f"prediction{suffix}"] = Figure(
            partial(draw_scatter, points, cost, main.found),
            f"Every (layer, component): the change of its map against the change of the "
            f"{cost.name}, {SHORT[way]} ablation; bars are 95 % intervals over sequences.",
        )
    frame = pd.DataFrame(
        [
            {
                "quantity": one.quantity,
                "over": one.over,
                "ablation": SHORT[one.way],
                "with": one.cost,
                **one.found._asdict(),
            }
            for one in asked
        ]
    )
    numbers = ("rho", "low", "high", "cells_low", "cells_high")
    return Result(
        tables={
            "correlations": Table(
                frame,
                "Spearman's ρ over cells with the change of the loss, with its 95 % intervals over "
                "sequences (low, high) and over cells.",
                dict.fromkeys(numbers, "+.2f"),
            )
        },
        figures=figures,
        sentences=_sentences(asked),
        summary={
            f"ρ of {one.quantity} with the {one.cost} ({SHORT[one.way]})": one.found.rho
            for one in asked
            if _is_main(one, way) and one.found.rho == one.found.rho
        },
    )


def _is_main(one: Asked, way: str) -> bool:
    return one.way == way and (one.over == "all" or one.quantity != MAPS)


def _correlations(evidence: AblationEvidence) -> Iterator[Asked]:
    """Every correlation that has cells: by quantity, components, way and cost."""
    changes = evidence.map_changes
    components = list(dict.fromkeys(changes.columns.get_level_values(0)))
    groups = {"all": components, "all but ATTN": [c for c in components if c != "ATTN"]}
    groups |= {component: [component] for component in components}
    if "ATTN" not in components:
        del groups["all but ATTN"]
    for cost in costs(evidence):
        for way in ways(cost.changes):
            rows = taken(cost.changes, way)
            for over, names in groups.items():
                yield from _asked(evidence, changes, MAPS, over, names, rows, way, cost)
            for quantity, cells in ((AMP, evidence.strengths), (NORMS, evidence.norm_ratios)):
                yield from _asked(evidence, cells, quantity, "FF", ["FF"], rows, way, cost)


def _asked(
    evidence: AblationEvidence,
    cells: pd.DataFrame,
    quantity: str,
    over: str,
    components: list[str],
    rows: pd.DataFrame,
    way: str,
    cost: Cost,
) -> Iterator[Asked]:
    there: list[Any] = cells.columns.to_list()
    numbers = {
        row.key: row.number
        for row in rows_of(rows)
        if row.component in components and row.key in there
    }
    if not numbers:
        return
    options = evidence.options
    drawn = cost.drawn(list(numbers.values()))
    mean, mean_drawn = mean_draws(cells[list(numbers)], len(drawn), options.seed)
    change = rows.loc[list(numbers.values()), "change"]
    found = cell_correlation(mean, change, mean_drawn, drawn, options.seed)
    yield Asked(quantity, over, way, cost.name, found)


def _points(evidence: AblationEvidence, cost: Cost, way: str) -> pd.DataFrame:
    """Every cell with its map's change (`map`) and its cost."""
    rows = taken(cost.changes, way)
    means = evidence.map_changes.mean().to_dict()
    changed = [means.get(row.key, np.nan) for row in rows_of(rows)]
    return rows.assign(map=changed).dropna(subset=["map", "change"])


def _sentences(asked: list[Asked]) -> list[str]:
    """One for each quantity and cost, with all ways of taking components away."""
    groups: dict[tuple[str, str], list[Asked]] = {}
    for one in asked:
        if (one.over == "all" or one.quantity != MAPS) and one.found.rho == one.found.rho:
            groups.setdefault((one.quantity, one.cost), []).append(one)
    return [_sentence(*key, group) for key, group in groups.items()]


def _sentence(quantity: str, cost: str, group: list[Asked]) -> str:
    over = "cells" if quantity == MAPS else "layers"
    first, *others = group
    ends = [words.fixed(end) for end in first.found[2:]]
    beside = listed([f"{words.fixed(one.found.rho)} by {SHORT[one.way]}" for one in others])
    signs = {_sign(one.found) for one in group}
    if signs == {1}:
        verdict = "it tells what the model can spare least"
    elif signs == {-1}:
        verdict = "the model can best spare what is largest in it"
    elif signs == {0}:
        verdict = "it does not tell what the model can spare"
    else:
        verdict = "whether it tells what the model can spare depends on how that is taken away"
    return (
        f"{quantity[0].upper()}{quantity[1:]} and the change of the {cost} have Spearman's "
        f"ρ = {words.fixed(first.found.rho)} over {first.found.cells} {over} ({SHORT[first.way]} "
        f"ablation; 95 %: {ends[0]} to {ends[1]} over sequences, {ends[2]} to {ends[3]} over "
        f"{over})" + (f", {beside}" if beside else "") + f": {verdict}."
    )


def _sign(found: CellCorrelation) -> int:
    """1 or −1 where both intervals lie on one side of 0; else 0."""
    ends = found[2:]
    return 1 if min(ends) > 0 else -1 if max(ends) < 0 else 0


# The verdict: FF's change of the map is cancelled behind it, so can FF go?


REDUNDANCY = Experiment(
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
