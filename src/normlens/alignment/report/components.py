"""What each component does to the alignment: the error rate behind it, less that before it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd

from normlens.alignment.error_rates import ErrorRates
from normlens.alignment.options import WAYS
from normlens.alignment.report.rate_tables import WAY_WORDS, of_maps
from normlens.reports.base import Experiment, Result, Table
from normlens.reports.formatting import signed
from normlens.scopes import components_of

EXPERIMENT = Experiment(
    name="alignment-components",
    title="Which components help the alignment, and which harm it?",
    source="not published before",
    question="Do LN and FF behind the cross-attention help or harm word alignment?",
    method=(
        "AER of each scope less that of the scope before it, in the same layer and way and on the "
        "same resamples of the sentence pairs, in points. A component helps where the whole "
        "interval lies below 0. What the residual connection behind the cross-attention adds is "
        "the decoder's alone, so that it changes nothing."
    ),
    absent="fewer than two scopes of norms were aligned.",
)
#: Differences below this are none at all.
_NOTHING = 1e-9


def component_result(rates: ErrorRates) -> Result | None:
    """The difference that every component makes, layer by layer; None for a single scope."""
    rows = _differences(rates)
    if not rows:
        return None
    table = pd.DataFrame(rows)
    return Result(
        tables={
            "alignment-components": Table(
                table,
                "Change of AER in points, with 95 % intervals; negative: the component helps.",
                dict.fromkeys(("before", "change", "low", "high"), ".1f"),
            )
        },
        sentences=_sentences(table),
    )


def _differences(rates: ErrorRates) -> list[dict[str, object]]:
    table = rates.table
    together = of_maps(table)
    together = together[together["scope"] != "CROSS-W"]
    scopes = list(together["scope"].unique())
    rows: list[dict[str, object]] = []
    for way in WAYS:
        for before, after in pairwise(scopes):
            for layer in sorted(together["layer"].unique()):
                first = _place(together, before, way, layer)
                second = _place(together, after, way, layer)
                if first is None or second is None:
                    continue
                mean, low, high = (100 * float(p[0]) for p in rates.difference(first, second))
                rows.append(
                    {
                        "way": way,
                        "layer": int(layer) + 1,
                        "component": _component(after),
                        "before": 100 * float(table["aer"][first]),
                        "change": mean if abs(mean) > _NOTHING else 0.0,
                        "low": low,
                        "high": high,
                    }
                )
    return rows


def _component(scope: str) -> str:
    """The last component of a scope, numbered if the layer has several behind the attentions."""
    parts = components_of(scope)
    return f"{parts[-1]}{parts.count(parts[-1])}" if parts[-1] != "FF" else "FF"


def _place(table: pd.DataFrame, scope: str, way: str, layer: int) -> int | None:
    here = (table["scope"] == scope) & (table["way"] == way) & (table["layer"] == layer)
    places = table.index[here]
    return int(places[0]) if len(places) else None


def _sentences(table: pd.DataFrame) -> list[str]:
    sentences = []
    for (way, component), some in table.groupby(["way", "component"], sort=False):
        if not (np.abs(some["change"]) > 0).any():
            continue
        # The layer in which words are aligned best, and how many layers go which way.
        best = some.sort_values("before").iloc[0]
        helps, harms = (some["high"] < 0).sum(), (some["low"] > 0).sum()
        sentences.append(
            f"{component} {WAY_WORDS[str(way)]}: {signed(best['change'], 1)} points in layer "
            f"{best['layer']}, the best before it ({signed(best['low'], 1)} to "
            f"{signed(best['high'], 1)}); of {len(some)} layers it helps in {helps} and harms in "
            f"{harms}."
        )
    return sentences
