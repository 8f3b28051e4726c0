"""Build the report of an alignment from its tables; no model is needed."""

from __future__ import annotations

import os
from pathlib import Path

from normlens.alignment.error_rates import SUMS, error_rates
from normlens.alignment.report import components, explanations, heads, rate_tables, worked_example
from normlens.corpus.runs.results import Run
from normlens.reports.base import Evidence
from normlens.reports.content import Header, Report, Section
from normlens.reports.formatting import power, short_names
from normlens.reports.run_report import check_finished, write_run_report
from normlens.reports.runs import measured, model_of

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
        sections.append(Section(rate_tables.EXPERIMENT, [(data, result)], queries=[SUMS]))
        sections.append(
            Section(components.EXPERIMENT, [(data, components.component_result(rates))])
        )
    sections.append(
        Section(explanations.EXPERIMENT, [(data, explanations.explanation_result(rates))])
    )
    sections.append(Section(heads.EXPERIMENT, [(data, heads.head_result(rates))]))
    example = worked_example.example_result(evidence, rates)
    sections.append(Section(worked_example.EXPERIMENT, [(data, example)]))
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
