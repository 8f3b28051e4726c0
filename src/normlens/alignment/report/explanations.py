"""Links from contributions to logits, beside the best map by output."""

from __future__ import annotations

from normlens.alignment.error_rates import ErrorRates
from normlens.alignment.options import EXPLAIN, OUTPUT
from normlens.alignment.report.rate_tables import in_points, per_cent, with_interval
from normlens.reports.base import Experiment, Result, Table
from normlens.reports.words import fixed

EXPERIMENT = Experiment(
    name="alignment-explain",
    title="Links from explanations",
    source="not published before",
    question="Do contributions to a word's logit link it better than any map?",
    method=(
        "For each target word the source word that contributes most to the logits of its tokens, "
        "through the whole model and back to the source's embeddings; signed, source subwords "
        "summed and target subwords averaged. The row is the one that predicts the word, so that "
        "links compare with those by output."
    ),
    absent="contributions were not asked for (--scope explain).",
)
_COLUMNS = ["aer", "aer_low", "aer_high", "precision", "recall"]


def explanation_result(rates: ErrorRates) -> Result | None:
    """The error rates of contributions, and how far they are from the best map's by output."""
    table = rates.table
    explained = table[table["scope"] == EXPLAIN]
    if explained.empty:
        return None
    why = explained.iloc[0]
    sentences = [
        f"Contributions to logits: AER {with_interval(why)}, precision "
        f"{fixed(100 * why['precision'], 1)}, recall {fixed(100 * why['recall'], 1)}."
    ]
    maps = table[(table["scope"] != EXPLAIN) & (table["way"] == OUTPUT) & (table["head"] < 0)]
    if not maps.empty:
        best = maps.loc[maps["aer"].idxmin()]
        change = rates.difference(int(maps["aer"].idxmin()), int(explained.index[0]))
        sentences.append(
            f"The best map by output is {best['scope']} of layer {best['layer'] + 1} with "
            f"{with_interval(best)}; contributions make that {in_points(change)}."
        )
    return Result(
        tables={
            "alignment-explain": Table(
                per_cent(explained)[_COLUMNS].reset_index(drop=True),
                "AER, precision and recall of contributions in per cent, with 95 % intervals.",
                dict.fromkeys(_COLUMNS, ".1f"),
                open=True,
            )
        },
        sentences=sentences,
        summary={"AER of contributions": 100 * float(why["aer"])},
    )
