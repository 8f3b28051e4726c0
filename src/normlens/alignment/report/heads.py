"""Single heads of the cross-attention, the best first."""

from __future__ import annotations

from normlens.alignment.error_rates import ErrorRates
from normlens.alignment.report.rate_tables import WAY_WORDS, per_cent, with_interval
from normlens.reports.base import Experiment, Result, Table

EXPERIMENT = Experiment(
    name="alignment-heads",
    title="Single heads",
    source="Kobayashi et al. 2020, eq. 6",
    question="Is there a head that aligns words better than all heads together?",
    method=(
        "As above, with the maps of single heads: α, and α‖f(x)‖. The best of many heads was "
        "chosen on the pairs that it is measured on, which flatters it."
    ),
    absent="no single head was aligned (--head all).",
)
_SHOWN = 12


def head_result(rates: ErrorRates) -> Result | None:
    """The heads by their error rates; None where no head was aligned."""
    heads = rates.table[rates.table["head"] >= 0].sort_values("aer", kind="stable")
    if heads.empty:
        return None
    best = heads.iloc[0]
    shown = per_cent(heads)
    shown["head"] += 1
    columns = ["scope", "way", "layer", "head", "aer", "aer_low", "aer_high", "precision", "recall"]
    return Result(
        tables={
            "alignment-heads": Table(
                shown[columns].reset_index(drop=True),
                "Heads by AER in per cent; layers and heads counted from 1.",
                dict.fromkeys(columns[4:], ".1f"),
                shown=_SHOWN,
            )
        },
        sentences=[
            f"The best head is head {best['head'] + 1} of layer {best['layer'] + 1} by "
            f"{best['scope']} {WAY_WORDS[best['way']]}: AER {with_interval(best)}."
        ],
    )
