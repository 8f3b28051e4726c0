"""Build the report of a faithfulness run from its tables; no model is needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.faithfulness.report import costs, overview, queries, worked_examples
from normlens.faithfulness.report.coloured_tokens import style
from normlens.faithfulness.report.curves import curve_figure, curve_table, curves
from normlens.faithfulness.report.differences import (
    Differences,
    compare_methods,
    difference_tables,
)
from normlens.faithfulness.report.method_colours import MethodColours
from normlens.faithfulness.report.ranking import Ranking, rank, ranking_table
from normlens.faithfulness.report.sentences import verdict
from normlens.reports.base import Evidence, Experiment, Result
from normlens.reports.content import Header, Report, Section
from normlens.reports.formatting import short_names
from normlens.reports.run_report import check_finished, write_run_report
from normlens.reports.runs import measured, model_of

TABLE = "faithfulness"  # the table that a run needs to have
_SELECTION = (
    " Differences are taken on the same examples; their intervals are the percentile bootstrap's, "
    "their p values the two-sided sign-flip test's. The winner was chosen on the examples that it "
    "is compared on, which the correction does not cover."
)


def build_report(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the tables, figures and page of a faithfulness run; gives the page's path.

    They go to `out`, by default the folder ``report`` in the run's own.
    """
    return write_run_report(run, describe, out)


def describe(run: Run) -> Report:
    """Describe the report of a finished run: a section per protocol, costs and examples."""
    path = str(run.folder)
    if TABLE not in run.tables:
        raise InputError(
            f"{path!r} measures no faithfulness; its tables are {', '.join(run.tables)}"
        )
    check_finished(run)
    data = next(iter(short_names([str(run.manifest.data["name"])]).values()))
    evidence = Evidence(data, run)
    seed = run.manifest.options.seed
    rankings = [rank(evidence, name, seed) for name in queries.protocols(evidence)]
    if not rankings:
        raise InputError(f"{path!r} holds no value of any protocol; see its table failures")
    differences = [compare_methods(ranking) for ranking in rankings]
    colours = MethodColours(rankings[0].methods)
    sections = [
        _protocol(evidence, ranking, compared, colours)
        for ranking, compared in zip(rankings, differences, strict=True)
    ]
    if len(rankings) > 1:
        glance = overview.overview(rankings, differences)
        sections = [Section(overview.EXPERIMENT, [(data, glance)]), *sections]
    cost = costs.costs(evidence, rankings, colours)
    sections += [
        Section(costs.EXPERIMENT, [(data, cost)], queries=[queries.PASSES]),
        Section(
            worked_examples.EXPERIMENT,
            [(data, worked_examples.worked_examples(evidence, rankings))],
        ),
    ]
    header = _header(run, evidence, rankings)
    return Report(f"{header.model.name}: are attributions faithful?", header, sections, style())


def _protocol(
    evidence: Evidence, ranking: Ranking, differences: Differences, colours: MethodColours
) -> Section:
    name, words = ranking.protocol, ranking.words
    tables = {name: ranking_table(ranking), **difference_tables(ranking, differences)}
    figures = {}
    asked = [queries.values_query(name)]
    averaged = curves(evidence, ranking)
    if averaged is not None:
        figures[f"{name}-curves"] = curve_figure(ranking, averaged, colours)
        tables[f"{name}-curves"] = curve_table(ranking, averaged)
        asked.append(queries.curves_query(name))
    result = Result(
        tables=tables,
        figures=figures,
        sentences=verdict(ranking, differences),
        summary={
            f"{words.value} of {method}": float(value)
            for method, value in zip(ranking.methods, ranking.table["value"], strict=True)
        },
    )
    experiment = Experiment(
        name=name,
        title=words.title,
        source=words.source,
        question=words.question,
        method=words.method + _SELECTION,
    )
    return Section(experiment, [(evidence.data, result)], queries=asked)


def _header(run: Run, evidence: Evidence, rankings: Sequence[Ranking]) -> Header:
    manifest = run.manifest
    texts = queries.intact(evidence)
    right = texts["right_class"].dropna()
    accuracy = f"; the model is right on {100 * right.mean():.1f} % of them" if len(right) else ""
    methods = dict.fromkeys(name for ranking in rankings for name in ranking.methods)
    options = manifest.options
    settings = {
        "limit": options.limit,
        "max_length": options.max_length,
        "seed": options.seed,
    }
    return Header(
        model=model_of(run),
        runs=[measured(run, evidence.data)],
        settings={name: value for name, value in settings.items() if value is not None},
        versions=dict(manifest.versions),
        notes=[
            ("Examples", f"{len(texts):,}{accuracy}"),
            ("Methods", ", ".join(methods)),
            ("Published numbers", "do not exist for this model and these data"),
        ],
        decomposed=False,
    )
