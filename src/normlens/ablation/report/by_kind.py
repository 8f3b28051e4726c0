"""Zero, mean and resample side by side, and the kinds of norms: how a component is taken away."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from normlens.ablation.kinds import MEAN, NORM_KINDS, RESAMPLE, VECTOR_KINDS, ZERO
from normlens.ablation.report.evidence import AblationEvidence
from normlens.ablation.report.outcomes import Cost, costs
from normlens.ablation.report.rows import rows_of
from normlens.ablation.report.scales import scale_changes
from normlens.errors import listed
from normlens.reports import words
from normlens.reports.base import Experiment, Figure, Result, Table
from normlens.reports.drawing import layer_ticks, legend, line, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

EXPERIMENT = Experiment(
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
                    partial(_draw, single, there, cost),
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


def _draw(rows: pd.DataFrame, kinds: list[str], cost: Cost) -> Drawing:
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
