"""What each component is worth: the change of the loss beside the change of the map."""

from __future__ import annotations

import numpy as np
import pandas as pd

from normlens.ablation.options import FEWEST
from normlens.ablation.report.evidence import AblationEvidence
from normlens.ablation.report.grids import draw_grids
from normlens.ablation.report.outcomes import Cost, costs
from normlens.ablation.report.rows import rows_of
from normlens.ablation.report.ways import IN_WORDS, SHORT, taken, ways
from normlens.reports import words
from normlens.reports.base import Experiment, Figure, Result, Table
from normlens.reports.formatting import count, signed

EXPERIMENT = Experiment(
    name="worth",
    title="What each component is worth",
    source="beyond the papers: no published figures exist to compare with",
    question="How much worse does the model get without a component of one layer, and how much "
    "does that component change the map?",
    method=(
        "One component of one layer of the real model is replaced while everything else stays; "
        "the loss of every sequence is compared with the intact model's on the same sequence. "
        "Changes are weighted by scored tokens; intervals (95 %) resample whole sequences. The "
        "change of the map is 1 − Spearman's ρ between the maps before and behind the component, "
        "the mean over the same sequences."
    ),
    absent="no ablation takes a component of one layer away",
)


#: Why a change has no number, by what harm does to its cost.
_LACKING = {
    "rises by": "values overflow there, so that the loss is not finite",
    "falls by": "all cosines are alike there, so that they have no order",
}


def worth(evidence: AblationEvidence) -> Result | None:
    """Heat maps of Δ loss and 1 − ρ, and a table of every ablation."""
    way = next(iter(ways(evidence.changes)), None)
    if way is None:
        return None
    tables: dict[str, Table] = {}
    figures: dict[str, Figure] = {}
    sentences = [_intact(evidence)]
    if len(evidence.losses) < FEWEST:
        sentences.append("So few sequences have no intervals that would mean anything.")
    for suffix, cost in zip(("", "-agreement"), costs(evidence), strict=False):
        rows = taken(cost.changes, way)
        if len(rows):
            figures[f"worth{suffix}"] = _figure(evidence, cost, rows, way)
            sentences += _sentences(cost, rows, way)
        together = taken(cost.changes, way, each=False)
        if len(together):
            sentences.append(_together(cost, together, way))
        tables[f"ablations{suffix}"] = _table(cost)
    return Result(tables, figures, sentences, summary=_summary(evidence, way))


def grid(rows: pd.DataFrame, layers: int, value: str = "change") -> pd.DataFrame:
    """A table of layers (from 1) × components, the components in the order of the rows."""
    wide = rows.pivot(index="layer", columns="component", values=value)
    wide.index = wide.index.astype(int)
    order = list(dict.fromkeys(rows["component"]))
    return wide.reindex(index=range(1, layers + 1), columns=order)


def _figure(evidence: AblationEvidence, cost: Cost, rows: pd.DataFrame, way: str) -> Figure:
    left = f"{cost.symbol}, {SHORT[way]}"
    right = "1 − ρ of the maps"
    changes = evidence.map_changes.mean().unstack("component")
    worths = grid(rows, evidence.layers)
    changed = changes.reindex(index=worths.index, columns=worths.columns)
    grids = {left: worths, right: changed}
    labels = {left: cost.unit, right: "before / behind the component"}
    return Figure(
        lambda: draw_grids(grids, labels),
        f"Left: the change of the {cost.name} ({cost.unit}) where a component of one layer is "
        f"{IN_WORDS[way]}. Right: how much the component changes the map, 1 − Spearman's ρ of the "
        "maps before and behind it. Grey: the component has no such number.",
    )


def _table(cost: Cost) -> Table:
    rows = cost.changes
    rows = rows[rows["draw"].isna()]
    frame = pd.DataFrame(
        {
            "component": rows["component"],
            "kind": rows["kind"],
            "layers": ["–".join(_ends(text)) for text in rows["layers"]],
            "change": rows["change"],
            "low": rows["low"],
            "high": rows["high"],
        }
    )
    return Table(
        frame.reset_index(drop=True),
        f"Every ablation but random draws: the change of the {cost.name} ({cost.unit}), with its "
        "95 % interval over sequences. Layers are counted from 1; a range is ablated at once.",
        dict.fromkeys(("change", "low", "high"), f"+.{cost.digits}f"),
        shown=60,
    )


def _ends(text: str) -> list[str]:
    """The first and the last of layers, counted from 1."""
    numbers = [int(part) + 1 for part in text.split(",")]
    return [str(number) for number in dict.fromkeys((numbers[0], numbers[-1]))]


def _intact(evidence: AblationEvidence) -> str:
    sequences, tokens = len(evidence.losses), int(evidence.counts.sum())
    kind = evidence.told.loss
    measured = f"{count(sequences, 'pair' if evidence.told.apart else 'sequence')}"
    if kind == "drift":
        text = f"Measured on {measured}; the intact model's vectors are what drift is taken from"
        if evidence.has_gold:
            rho = words.fixed(evidence.intact_agreement, 3)
            text += f", and its cosines have Spearman's ρ = {rho} with the gold scores"
        return text + "."
    scored = "" if kind == "classes" else f" ({tokens:,} scored tokens)"
    loss = words.fixed(evidence.intact, 3)
    return f"The intact model's loss is {loss} on {measured}{scored}."


def _sentences(cost: Cost, rows: pd.DataFrame, way: str) -> list[str]:
    finite = rows.dropna(subset=["change"])
    sentences = []
    if len(finite):
        top = max(rows_of(finite), key=lambda row: row.change)
        text = (
            f"Of {count(len(finite), '(layer, component) cell')}, {top.component} in layer "
            f"{top.label} is worth most: without it ({SHORT[way]} ablation) the {cost.name} "
            f"{cost.moves} {top.text(cost.digits)}"
        )
        if cost.has_zero:
            harm, good = int((finite["low"] > 0).sum()), int((finite["high"] < 0).sum())
            text += f"; the interval lies above 0 for {harm} of the cells"
            text += f", and below for {good}" if good else ""
        sentences.append(text + ".")
    if len(finite) < len(rows):
        which = ", ".join(
            f"{row.component} in layer {row.label}"
            for row in rows_of(rows[rows["change"].isna()])[:5]
        )
        sentences.append(f"There is no number for {which}: {_LACKING[cost.moves]}.")
    return sentences


def _together(cost: Cost, rows: pd.DataFrame, way: str) -> str:
    ordered = rows.dropna(subset=["change"]).sort_values("change", ascending=False)
    listed = ", ".join(
        f"{signed(row.change, cost.digits - 1)} without {row.component}" for row in rows_of(ordered)
    )
    changes = listed or "nothing finite"
    return f"In all layers at once ({SHORT[way]}), the {cost.name} {cost.moves} {changes}."


def _summary(evidence: AblationEvidence, way: str) -> dict[str, float]:
    rows = taken(evidence.changes, way)
    means = rows.groupby("component", sort=False)["change"].mean()
    return {
        f"Δ loss of {name} ({SHORT[way]}), mean over layers": float(mean)
        for name, mean in means.items()
        if np.isfinite(mean)
    }
