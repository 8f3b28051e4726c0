"""Error rates of a run's links against gold links, with intervals over sentence pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.measures.alignment import Rates, Resampled, resampled_rates
from normlens.measures.bootstrap import Means
from normlens.studies.alignment.gold import COUNTS
from normlens.studies.alignment.options import INPUT, OUTPUT

RESAMPLES = 10_000
#: What tells one map's links from another's.
KEYS = ["scope", "way", "layer", "head"]
SUMS = """SELECT scope, way, layer, head, count(*) AS pairs,
  1 - (sum(sure_hits) + sum(possible_hits)) / (sum(links) + sum(sure)) AS aer,
  sum(possible_hits) / sum(links) AS precision, sum(sure_hits) / sum(sure) AS recall
FROM alignment WHERE sure IS NOT NULL GROUP BY ALL ORDER BY aer"""
_COUNTS = f"""SELECT "index", scope, way, coalesce(layer, -1) AS layer, coalesce(head, -1) AS head,
  {", ".join(COUNTS)}
FROM alignment WHERE sure IS NOT NULL"""


@dataclass(frozen=True)
class ErrorRates:
    """Rates of every map's links, the columns of `resampled` in the order of the table's rows."""

    table: pd.DataFrame  # scope, way, layer, head, pairs, then each rate with its interval, best
    resampled: Resampled

    def difference(self, first: int, second: int) -> Means:
        """How much AER rises from the map of one row to another's, on the same pairs."""
        return self.resampled.difference("aer", second, first)


def error_rates(run: Run, resamples: int = RESAMPLES, seed: int = 0) -> ErrorRates:
    """AER, precision and recall of every layer, scope, way and head, with 95 % intervals.

    Rows are in the order of the scopes in a layer; `head` is −1 for all heads together, `layer`
    −1 for the whole model (EXPLAIN), and `best` marks the lowest AER.
    """
    if "alignment" not in run.tables:
        raise InputError(
            f"{str(run.folder)!r} aligns no words; make one with normlens reproduce align"
        )
    counts = run.sql(_COUNTS)
    if counts.empty:
        raise InputError(f"{str(run.folder)!r} has no gold links; align again with --gold FILE")
    # The scopes as a layer has them: CROSS-W, CROSS-N, and what follows.
    known = ["CROSS-W", "CROSS-N", *run.manifest.model["scopes"]]
    scopes = sorted(
        counts["scope"].unique(),
        key=lambda scope: known.index(scope) if scope in known else len(known),
    )
    order = {scope: place for place, scope in enumerate(scopes)}
    counts["place"] = counts["scope"].map(order)
    counts["second"] = counts["way"] == OUTPUT
    wide = counts.pivot(
        index="index", columns=["second", "place", "head", "layer"], values=list(COUNTS)
    )
    maps = wide[COUNTS[0]].columns.sort_values()
    cells = np.stack([wide[name][maps].to_numpy(np.float64) for name in COUNTS], axis=-1)
    resampled = resampled_rates(cells, resamples, seed)
    table = maps.to_frame(index=False)
    table["scope"] = table["place"].map(dict(enumerate(scopes)))
    table["way"] = np.where(table["second"], OUTPUT, INPUT)
    table = table[KEYS].assign(pairs=len(cells))
    for name in Rates._fields:
        value, low, high = resampled.interval(name)
        table[name], table[f"{name}_low"], table[f"{name}_high"] = value, low, high
    table["best"] = table["aer"] == table["aer"].min()
    return ErrorRates(table, resampled)


def of_maps(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of maps of all heads together, without contributions to logits."""
    return table[(table["head"] < 0) & (table["layer"] >= 0)]
