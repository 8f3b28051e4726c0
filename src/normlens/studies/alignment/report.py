"""Build the report of an alignment from its tables, with one worked example."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from normlens.corpus.runs.results import Run
from normlens.figures.canvas import COLOURS
from normlens.studies.alignment import rates as components
from normlens.studies.alignment import rates as explanations
from normlens.studies.alignment import rates as heads
from normlens.studies.alignment import rates as rate_tables
from normlens.studies.alignment.rates import SUMS, ErrorRates, error_rates, of_maps
from normlens.studies.reports.contents import (
    Evidence,
    Experiment,
    Figure,
    Header,
    Report,
    Result,
    Section,
    measured,
    model_of,
)
from normlens.studies.reports.drawing import GREY, SMALL, panels, style
from normlens.studies.reports.registry import check_finished, write_run_report
from normlens.studies.reports.words import power, short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# One sentence pair: the best map's links, those of weights, and the gold links.


WORKED_EXAMPLE = Experiment(
    name="alignment-example",
    title="A sentence pair",
    source="the first pair of moderate length",
    question="What do the links look like?",
    method="Rows are target words, columns source words, as in maps.",
    absent="no pair has between 6 and 16 words on both sides.",
)
_SHORT, _LONG = 6, 16
_SURE = "#d6d6d6"
_TEXTS = 'SELECT * FROM alignment_texts WHERE gold_sure IS NOT NULL ORDER BY "index"'


def example_result(evidence: Evidence, rates: ErrorRates) -> Result | None:
    """The first pair that is neither too short nor too long to be read as a picture."""
    for text in evidence.sql(_TEXTS).to_dict("records"):
        source, target = str(text["source"]).split(), str(text["target"]).split()
        if all(_SHORT <= len(words) <= _LONG for words in (source, target)):
            break
    else:
        return None
    links = {
        str(row["scope"]): _links(evidence, int(text["index"]), row) for row in _chosen(rates.table)
    }
    if not links:
        return None
    gold = {name: _parsed(str(text[f"gold_{name}"])) for name in ("sure", "possible")}
    return Result(
        figures={
            "alignment-example": Figure(
                lambda: _draw(source, target, links, gold),
                "Grey: sure gold links; outlined: possible ones. Dots: the links of the best map "
                "of weights and of the best map of all, layers counted from 1.",
            )
        }
    )


def _chosen(table: pd.DataFrame) -> list[pd.Series]:
    """The best map of weights and the best of all, heads together."""
    together = of_maps(table)
    if together.empty:
        together = table[table["layer"] >= 0]
    weights = together[together["scope"] == "CROSS-W"]
    best = [
        some.sort_values("aer", kind="stable").iloc[0]
        for some in (weights, together)
        if not some.empty
    ]
    return best[:1] if len(best) == 2 and best[0].equals(best[1]) else best


def _links(evidence: Evidence, index: int, row: pd.Series) -> tuple[str, set[tuple[int, int]]]:
    head = "IS NULL" if row["head"] < 0 else f"= {int(row['head'])}"
    (written,) = evidence.sql(
        f"""SELECT alignment FROM alignment WHERE "index" = {index}
  AND scope = '{row["scope"]}' AND way = '{row["way"]}' AND layer = {int(row["layer"])}
  AND head {head}"""
    )["alignment"]
    return f"{row['scope']}, layer {row['layer'] + 1}, by {row['way']}", _parsed(str(written))


def _parsed(written: str) -> set[tuple[int, int]]:
    pairs = (link.split("-") for link in written.split())
    return {(int(source), int(target)) for source, target in pairs}


def _draw(
    source: list[str],
    target: list[str],
    links: dict[str, tuple[str, set[tuple[int, int]]]],
    gold: dict[str, set[tuple[int, int]]],
) -> Drawing:
    from matplotlib.patches import Rectangle

    width = 1.4 + 0.24 * len(source)
    figure, axes = panels(len(links), width=width, height=1.4 + 0.2 * len(target), sharey=True)
    for place, (panel, (label, found)) in enumerate(zip(axes, links.values(), strict=True)):
        for i, j in gold["possible"]:
            filled = _SURE if (i, j) in gold["sure"] else "none"
            corner = (i - 0.45, j - 0.45)
            panel.add_patch(Rectangle(corner, 0.9, 0.9, facecolor=filled, edgecolor=GREY, lw=0.6))
        _dots(panel, found, COLOURS[place % len(COLOURS)])
        style(panel, title=label, grid=False, y="" if place else "target")
        panel.set_xticks(range(len(source)), source, rotation=90, fontsize=SMALL)
        panel.set_yticks(range(len(target)), target, fontsize=SMALL)
        panel.set_xlim(-0.6, len(source) - 0.4)
        panel.set_ylim(len(target) - 0.4, -0.6)
        panel.set_xlabel("source", fontsize=SMALL)
    return figure


def _dots(panel: object, links: Iterable[tuple[int, int]], colour: str) -> None:
    some = sorted(links)
    panel.plot([i for i, _ in some], [j for _, j in some], "o", color=colour, ms=4)  # type: ignore[attr-defined]


# Build the report of an alignment from its tables; no model is needed.


TABLE = "alignment"  # the table that a run needs to have


def build_report(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the tables, figures and page of an alignment with gold links; gives the page's path.

    They go to `out`, by default the folder ``report`` in the run's own.
    """
    return write_run_report(run, describe, out)


def describe(run: Run) -> Report:
    """Describe the report of a finished alignment."""
    check_finished(run)
    rates = error_rates(run, seed=run.manifest.options.seed)
    data = next(iter(short_names([str(run.manifest.data["name"])]).values()))
    evidence = Evidence(data, run)
    sections = []
    if not rate_tables.of_maps(rates.table).empty:
        result = rate_tables.rate_result(rates)
        sections.append(Section(rate_tables.RATES, [(data, result)], queries=[SUMS]))
        sections.append(
            Section(components.COMPONENTS, [(data, components.component_result(rates))])
        )
    sections.append(
        Section(explanations.EXPLANATIONS, [(data, explanations.explanation_result(rates))])
    )
    sections.append(Section(heads.HEADS, [(data, heads.head_result(rates))]))
    example = example_result(evidence, rates)
    sections.append(Section(WORKED_EXAMPLE, [(data, example)]))
    return Report(f"{model_of(run).name}: word alignment", _header(run, data), sections)


def _header(run: Run, data: str) -> Header:
    manifest = run.manifest
    worst = run.sql("SELECT max(completeness) AS worst FROM alignment_texts")["worst"].iloc[0]
    settings = manifest.options.settings[TABLE]
    shown = {name: settings.get(name) for name in ("scopes", "layers", "ways", "head")}
    return Header(
        model=model_of(run),
        runs=[measured(run, data)],
        settings={name: value for name, value in shown.items() if value is not None},
        versions=dict(manifest.versions),
        notes=[
            ("Gold links", Path(str(settings["gold"])).name),
            ("Completeness error", power(float(worst))),
            ("Published numbers", "are of other models, and the paper's of other data"),
        ],
        decomposed=False,
    )
