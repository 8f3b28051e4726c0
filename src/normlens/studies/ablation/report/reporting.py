"""Build the page of an ablation from its two runs; special dimensions against random ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.figures.canvas import COLOURS
from normlens.measures.bootstrap import place_among
from normlens.scopes import layers_in_words
from normlens.studies.ablation.data import ABLATION, MAPS, finished_run, load_settings
from normlens.studies.ablation.options import CONTROLS, LOWEST_GAMMA, OUTLIERS
from normlens.studies.ablation.report import prediction, worth
from normlens.studies.ablation.report.evidence import (
    AblationEvidence,
    loss_cost,
    rows_of,
    scale_changes,
)
from normlens.studies.reports.contents import (
    Experiment,
    Figure,
    Header,
    Report,
    Result,
    Section,
    Table,
    measured,
    model_of,
)
from normlens.studies.reports.drawing import GREY, legend, panels, style
from normlens.studies.reports.files import write
from normlens.studies.reports.words import count, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Special dimensions of the norm behind FF against as many random ones.


SPECIAL = Experiment(
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


# Build the page of an ablation from its two runs.


#: The questions, in the page's order, and the functions that answer them.
SECTIONS = (
    (worth.WORTH, worth.worth),
    (prediction.PREDICTION, prediction.prediction),
    (worth.BY_KIND, worth.by_kind),
    (SPECIAL, special),
    (prediction.REDUNDANCY, prediction.redundancy),
)
_HIDDEN = ("model", "data", "revision", "loss", "reference")


def build_report(folder: str | os.PathLike[str]) -> Path:
    """Write the tables, figures and page of a folder that `ablate` has made; gives the page."""
    folder = Path(folder)
    write(describe(folder), folder)
    return folder / "report.html"


def describe(folder: Path) -> Report:
    """Describe the page of a folder, from its tables alone."""
    options, told = load_settings(folder)
    runs = {name: finished_run(folder, name) for name in (ABLATION, MAPS)}
    evidence = AblationEvidence(options, told, runs[ABLATION], runs[MAPS])
    if evidence.losses.empty:
        raise InputError(
            f"no sequence of {str(folder / ABLATION)!r} has a loss; see: normlens query "
            f'{folder / ABLATION} "SELECT * FROM failures"'
        )
    sections = [
        Section(experiment, [("", work(evidence))], runs=list(runs))
        for experiment, work in SECTIONS
    ]
    header = _header(evidence, runs)
    return Report(f"What {header.model.name}’s components are worth", header, sections)


def _header(evidence: AblationEvidence, runs: dict[str, Run]) -> Header:
    options, told = evidence.options, evidence.told
    shown = {
        name.replace("_", " "): value
        for name, value in options.as_json().items()
        if name not in _HIDDEN and value not in (None, (), False)
    }
    ablated = len(evidence.plan) - 1
    return Header(
        model=model_of(runs[ABLATION]),
        runs=[measured(run, name.rpartition("/")[2], name) for name, run in runs.items()],
        settings=shown,
        versions=dict(runs[ABLATION].manifest.versions),
        notes=[
            ("Loss", told.loss),
            ("Ablations", f"{ablated} of the real model, each beside the intact one"),
            ("First pass", f"reads {told.reference}"),
            ("Layers", "counted from 1 in this report, as in the papers"),
            (
                "Published numbers",
                "none exist: nobody has set these maps beside the loss, so nothing here is "
                "compared with a paper",
            ),
        ],
    )
