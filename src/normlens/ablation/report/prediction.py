"""Does the change of the map predict the change of the loss? Correlations over cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from normlens.ablation.report.evidence import AblationEvidence
from normlens.ablation.report.outcomes import Cost, costs
from normlens.ablation.report.rows import rows_of
from normlens.ablation.report.scatter import draw_scatter
from normlens.ablation.report.ways import SHORT, taken, ways
from normlens.errors import listed
from normlens.measures.ranks import CellCorrelation, cell_correlation, mean_draws
from normlens.reports import words
from normlens.reports.base import Experiment, Figure, Result, Table

EXPERIMENT = Experiment(
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
