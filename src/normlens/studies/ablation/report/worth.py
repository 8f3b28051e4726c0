"""What each component is worth, by layer and by the way it is taken away."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.errors import listed
from normlens.figures.canvas import INK
from normlens.figures.colours import SignedColours
from normlens.studies.ablation.options import FEWEST, MEAN, NORM_KINDS, RESAMPLE, VECTOR_KINDS, ZERO
from normlens.studies.ablation.report.evidence import (
    IN_WORDS,
    SHORT,
    AblationEvidence,
    Cost,
    costs,
    rows_of,
    scale_changes,
    taken,
    ways,
)
from normlens.studies.reports import words
from normlens.studies.reports.contents import Experiment, Figure, Result, Table
from normlens.studies.reports.drawing import SMALL, TEXT, layer_ticks, legend, line, panels, style
from normlens.studies.reports.words import count, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Heat maps of layers × components: what each is worth, and how much it changes the map.


#: More layers leave no room for numbers in the cells.
_NUMBERED = 16
_ABSENT = "#f2f2f2"


def draw_grids(grids: dict[str, pd.DataFrame], labels: dict[str, str]) -> Drawing:
    """Draw tables of layers (rows) × components (columns) side by side, each in its own colours.

    `labels` are those of the colour bars, by the grids' titles. All have the same rows; a component
    that one of them lacks is left grey in it.
    """
    layers = max(len(grid) for grid in grids.values())
    columns = list(dict.fromkeys(name for grid in grids.values() for name in grid))
    width = max(3.0, 0.52 * len(columns) + 1.1)
    high = max(2.4, min(0.28, 6.5 / layers) * layers + 0.9)
    figure, axes = panels(len(grids), 1, width=width, height=high)
    for place, (panel, (title, grid)) in enumerate(zip(axes, grids.items(), strict=True)):
        image = _draw_grid(panel, grid.reindex(columns=columns))
        style(panel, y="" if place else words.LAYER, title=title, grid=False)
        panel.tick_params(length=0)
        for spine in panel.spines.values():
            spine.set_visible(False)
        bar = figure.colorbar(image, ax=panel, fraction=0.05, pad=0.02, aspect=8 * high)
        bar.set_label(labels[title], fontsize=TEXT, color=INK)
        bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
        bar.outline.set_visible(False)
        finite = grid.to_numpy(float)[np.isfinite(grid.to_numpy(float))]
        if len(finite) and finite.min() < finite.max():
            # The colours are alike on both sides of 0; the key shows those that occur.
            bar.ax.set_ylim(min(0.0, float(finite.min())), max(0.0, float(finite.max())))
    return figure


def _draw_grid(panel: Any, grid: pd.DataFrame) -> Any:
    values = grid.to_numpy(float)
    # A few large changes beside many small ones: the root brings out the small ones.
    colours = SignedColours(values, scale="sqrt")
    panel.set_facecolor(_ABSENT)
    rows, columns = values.shape
    image = panel.imshow(
        np.ma.masked_invalid(values),
        cmap=colours.cmap,
        norm=colours.norm,
        aspect="auto",
        extent=(-0.5, columns - 0.5, rows + 0.5, 0.5),
    )
    panel.set_xticks(range(columns), list(grid), rotation=45 if columns > 6 else 0)
    panel.xaxis.tick_bottom()
    panel.set_yticks(range(1, rows + 1, max(1, -(-rows // 16))))
    if rows <= _NUMBERED:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                panel.text(
                    column,
                    row + 1,
                    _short(value),
                    ha="center",
                    va="center",
                    fontsize=SMALL - 1,
                    color=colours.ink(value),
                )
    return image


def _short(value: float) -> str:
    """A number for a small cell: two digits that matter, without a leading 0."""
    size = abs(value)
    text = f"{value:.0f}" if size >= 99.5 else f"{value:.1f}" if size >= 9.95 else f"{value:.2f}"
    if float(text) == 0:
        return "0"
    return text.replace("0.", ".", 1).replace("-", "−") if size < 1 else text.replace("-", "−")


# What each component is worth: the change of the loss beside the change of the map.


WORTH = Experiment(
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


# Zero, mean and resample side by side, and the kinds of norms: how a component is taken away.


BY_KIND = Experiment(
    name="kinds",
    title="Zero, mean and resample side by side",
    source="beyond the papers: no published figures exist to compare with",
    question="Does it matter how a component is taken away?",
    method=(
        "Zero: the output (of a residual connection: what it adds) is 0. Mean: its mean over the "
        "first pass's tokens. Resample: its vector at a random position of the first pass. Norms: "
        "σ frozen at its mean, γ → 1 and β → 0, or left out. Zero alone overstates, because "
        "nothing behind a component has ever seen 0 in its place; so several are reported."
    ),
    absent="only one kind of ablation was taken",
)
#: What to think of it where one kind does most harm.
_WHY = {
    ZERO: ": zero alone would overstate what it costs",
    MEAN: ": a mean over all tokens is far from each of them where a few, such as the first, have "
    "very long vectors",
    RESAMPLE: ": it brings in what other tokens say",
}
#: Kinds that are alternatives of each other, by what they replace.
GROUPS = {"components": VECTOR_KINDS, "norms": NORM_KINDS}


def by_kind(evidence: AblationEvidence) -> Result | None:
    """A table per group of kinds with all kinds side by side, and lines over the layers."""
    tables: dict[str, Table] = {}
    figures: dict[str, Figure] = {}
    sentences: list[str] = []
    for suffix, cost in zip(("", "-agreement"), costs(evidence), strict=False):
        means = means_table(cost.changes)
        if means.shape[1] > 1:
            tables[f"kinds-means{suffix}"] = Table(
                means.reset_index(),
                f"The mean change of the {cost.name} ({cost.unit}) over single layers.",
                dict.fromkeys(means.columns, f"+.{cost.digits}f"),
                open=True,
            )
            sentences += overstated(means, cost.name)
        for name, kinds in GROUPS.items():
            rows = cost.changes[cost.changes["kind"].isin(kinds)]
            there = [kind for kind in kinds if kind in set(rows["kind"])]
            if len(there) < 2:
                continue
            tables[f"kinds-{name}{suffix}"] = Table(
                side_by_side(rows, there, cost.digits),
                f"The change of the {cost.name} ({cost.unit}) of {name}, by how they are taken "
                "away, with 95 % intervals over sequences.",
            )
            single = rows[rows["layer"].notna()]
            if single["layer"].nunique() > 1:
                figures[f"kinds-{name}{suffix}"] = Figure(
                    partial(_draw_kinds, single, there, cost),
                    f"The change of the {cost.name} per layer of {name}, by how they are taken "
                    "away, with 95 % intervals.",
                )
    return Result(tables, figures, sentences) if tables else None


def side_by_side(rows: pd.DataFrame, kinds: list[str], digits: int) -> pd.DataFrame:
    """A row per component and layer ("all": at once); a column per kind, intervals as text."""
    table: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows_of(rows):
        table.setdefault((row.component, row.label), {})[row.kind] = row.text(digits)
    return pd.DataFrame(
        [
            {"component": component, "layer": label, **{kind: cells.get(kind) for kind in kinds}}
            for (component, label), cells in table.items()
        ]
    )


def means_table(changes: pd.DataFrame) -> pd.DataFrame:
    """The mean change over single layers: a row per component, a column per kind."""
    rows = changes[changes["layer"].notna() & changes["kind"].isin(VECTOR_KINDS)]
    means = rows.pivot_table(index="component", columns="kind", values="change", sort=False)
    return means.reindex(columns=[kind for kind in VECTOR_KINDS if kind in means])


def overstated(means: pd.DataFrame, name: str) -> list[str]:
    """Say for which components zero, or the mean, does most harm of all."""
    complete = means.dropna()
    if complete.shape[1] < 2 or complete.empty:
        return []
    most = complete.idxmax(axis=1)
    sentences = []
    for kind, why in _WHY.items():
        names = [str(component) for component in most.index[most == kind]]
        if names:
            sentences.append(
                f"For {listed(names)}, {kind} does most harm to the {name} on average over "
                f"layers{why}."
            )
    return sentences


def _draw_kinds(rows: pd.DataFrame, kinds: list[str], cost: Cost) -> Drawing:
    names = list(dict.fromkeys(rows["component"]))
    columns = min(3, len(names))
    figure, axes = panels(columns, -(-len(names) // columns), width=2.6, height=2.0)
    for place, panel in enumerate(axes):
        if place >= len(names):
            panel.set_axis_off()
            continue
        some = rows[rows["component"] == names[place]]
        for number, kind in enumerate(kinds):
            one = some[some["kind"] == kind].sort_values("layer")
            if len(one):
                line(panel, one["layer"], one["change"], one["low"], one["high"], number, kind)
        layer_ticks(panel, int(rows["layer"].max()))
        scale_changes(panel, some["change"], signed=False)
        below = place + columns >= len(names)
        style(
            panel,
            x=words.LAYER if below else "",
            y=cost.symbol if place % columns == 0 else "",
            title=names[place],
        )
        if place == 0:
            legend(panel)
    return figure
