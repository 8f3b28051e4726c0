"""Special dimensions of the norm behind FF against as many random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from normlens.ablation.kinds import CONTROLS, LOWEST_GAMMA, OUTLIERS
from normlens.ablation.report.evidence import AblationEvidence
from normlens.ablation.report.outcomes import loss_cost
from normlens.ablation.report.rows import rows_of
from normlens.ablation.report.scales import scale_changes
from normlens.figures.canvas import COLOURS
from normlens.measures.bootstrap import place_among
from normlens.reports.base import Experiment, Figure, Result, Table
from normlens.reports.drawing import GREY, legend, panels, style
from normlens.reports.formatting import count, signed
from normlens.scopes import layers_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

EXPERIMENT = Experiment(
    name="special-dimensions",
    title="Special dimensions against random ones",
    source="the dimensions of Kobayashi et al. 2024, section 6; no published losses exist",
    question="Do the few dimensions with the lowest γ (and the outliers of γ) of the norm behind "
    "FF matter more for the loss than as many random ones?",
    method=(
        "γ and β of the dimensions are set to 0 in the real model: the 1 % with the lowest γ, "
        "those beyond 3σ, and seeded draws of as many others. p is that of the rank among the "
        "draws, (1 + draws that do as much harm) / (1 + draws)."
    ),
    absent="no layer has a norm with a γ behind its feed-forward block, or none was ablated",
)
_NAMES = {LOWEST_GAMMA: "lowest γ", OUTLIERS: "outlying γ"}


def special(evidence: AblationEvidence) -> Result | None:
    """Where special dimensions stand among random draws, per layer and in all at once."""
    cost = loss_cost(evidence)
    table = compared(cost.changes)
    if table.empty:
        return None
    numbers = ("change", "low", "high", "random mean", "random largest")
    return Result(
        tables={
            "special-dimensions": Table(
                table,
                f"The change of the {cost.name} ({cost.unit}) without special dimensions, with its "
                "95 % interval over sequences, beside draws of random dimensions, and the p of its "
                "rank among them. Layers are counted from 1.",
                {**dict.fromkeys(numbers, "+.4f"), "p": ".3f"},
            )
        },
        figures={
            "special-dimensions": Figure(
                lambda: _draw(cost.changes, table, cost.symbol, cost.unit),
                f"The change of the {cost.name} without special dimensions (large dots, with 95 % "
                "intervals) and without as many random ones (small dots, one per draw).",
            )
        },
        sentences=[_sentence(table, kind, cost.name) for kind in table["dimensions"].unique()],
    )


def compared(changes: pd.DataFrame) -> pd.DataFrame:
    """A row per kind of special dimensions and layer ("all": at once), with its random draws."""
    rows = []
    for kind, control in CONTROLS.items():
        for row in rows_of(changes[changes["kind"] == kind]):
            same = (
                (changes["kind"] == control)
                & (changes["component"] == row.component)
                & (changes["layers"] == row.layers)
            )
            draws = changes.loc[same, "change"]
            reached, p = place_among(row.change, draws)
            rows.append(
                {
                    "dimensions": _NAMES[kind],
                    "layer": row.label,
                    "change": row.change,
                    "low": row.low,
                    "high": row.high,
                    "random mean": draws.mean(),
                    "random largest": draws.max(),
                    "draws": len(draws),
                    "draws as harmful": reached,
                    "p": p,
                }
            )
    return pd.DataFrame(rows)


def _sentence(table: pd.DataFrame, kind: str, name: str) -> str:
    rows = table[table["dimensions"] == kind]
    single = rows[rows["layer"] != "all"]
    draws = int(rows["draws"].max())
    clear = single[single["draws as harmful"] == 0]
    where = layers_in_words(map(int, clear["layer"])) if len(clear) else "no layer"
    least = f"p = {1 / (1 + draws):.3f}" if draws else "no draws"
    text = (
        f"Setting the dimensions with {kind} to 0 does more harm than every one of "
        f"{count(draws, 'random draw')} ({least}) in {where} of {len(single)}"
    )
    together = rows[rows["layer"] == "all"]
    if len(together):
        row = together.iloc[0]
        text += (
            f"; in all layers at once the {name} changes by {signed(row['change'], 3)} where "
            f"random dimensions change it by {signed(row['random mean'], 3)} on average "
            f"(p = {row['p']:.3f})"
        )
    return text + "."


def _draw(changes: pd.DataFrame, table: pd.DataFrame, symbol: str, unit: str) -> Drawing:
    kinds = [kind for kind in CONTROLS if _NAMES[kind] in set(table["dimensions"])]
    figure, axes = panels(len(kinds), 1, width=3.8, height=2.7)
    for panel, kind in zip(axes, kinds, strict=True):
        rows = table[table["dimensions"] == _NAMES[kind]]
        places = {label: place for place, label in enumerate(rows["layer"])}
        control = changes[changes["kind"] == CONTROLS[kind]]
        labels = [f"{int(n)}" if n == n else "all" for n in control["layer"]]
        panel.plot(
            [places[label] for label in labels],
            control["change"],
            ".",
            color=GREY,
            ms=3,
            label="random dimensions",
        )
        low, high = rows["change"] - rows["low"], rows["high"] - rows["change"]
        panel.errorbar(
            range(len(rows)),
            rows["change"],
            yerr=[low.clip(lower=0), high.clip(lower=0)],
            fmt="o",
            color=COLOURS[1],
            ms=4.5,
            lw=1,
            label=_NAMES[kind],
        )
        panel.axhline(0, color=GREY, lw=0.5)
        scale_changes(panel, [*control["change"], *rows["change"]])
        step = max(1, -(-len(rows) // 14))
        panel.set_xticks(range(0, len(rows), step), list(rows["layer"])[::step])
        style(panel, x="layer (counted from 1)", y=f"{symbol} ({unit})" if panel is axes[0] else "")
        legend(panel, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure
