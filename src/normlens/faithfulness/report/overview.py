"""All protocols at a glance: every method's value in each, and who wins."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from normlens.faithfulness.report.differences import Differences, significant
from normlens.faithfulness.report.ranking import Ranking
from normlens.faithfulness.report.sentences import with_interval
from normlens.reports.base import Experiment, Result, Table
from normlens.reports.words import fixed

EXPERIMENT = Experiment(
    name="overview",
    title="All protocols at a glance",
    source="means of the sections below",
    question="Which method is the most faithful?",
    method="Means over examples; each protocol's section has intervals, tests and curves.",
)


def overview(rankings: Sequence[Ranking], differences: Sequence[Differences]) -> Result:
    """Set every protocol's values beside each other."""
    columns = {
        f"{ranking.protocol}{' (lower is better)' if ranking.words.lower_is_better else ''}": (
            ranking.table.set_index("method")["value"]
        )
        for ranking in rankings
    }
    table = pd.DataFrame(columns).reindex(rankings[0].methods)
    others = [name for ranking in rankings for name in ranking.methods if name not in table.index]
    table = pd.DataFrame(columns).reindex([*table.index, *dict.fromkeys(others)])
    return Result(
        tables={
            "overview": Table(
                table.reset_index(names="method"),
                "Every method's value in every protocol, in the order of the first.",
                dict.fromkeys(columns, ".3f"),
                open=True,
            )
        },
        sentences=[
            _winner(ranking, compared)
            for ranking, compared in zip(rankings, differences, strict=True)
        ],
    )


def _winner(ranking: Ranking, differences: Differences) -> str:
    winner, *others = ranking.methods
    best = f"In {ranking.protocol} {winner} is first with {with_interval(ranking.row(winner))}"
    if not others:
        return f"{best}."
    after = f"before {others[0]} with {fixed(ranking.row(others[0])['value'], 3)}"
    if not ranking.certain:
        return f"{best}, {after} (too few examples for a test)."
    sure = significant(differences.between(winner, others[0]))
    return f"{best}, {after} ({'significant' if sure else 'not significant'})."
