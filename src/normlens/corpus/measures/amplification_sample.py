"""The sample of FF-amp: of rows of several sequences, those that all of them together keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from normlens.corpus.measures import reservoir
from normlens.corpus.measures.columns import codes


def combined_sample(
    parts: pa.Table, relations: Sequence[str], keep: int, keep_other: int
) -> pa.Table:
    """Keep each stratum's lowest priorities."""
    before, after = codes(parts["before"])[0], codes(parts["after"])[0]
    relation, names = codes(parts["relation"])
    relation = np.array([relations.index(name) for name in names], np.int64)[relation]
    layer, index, target, source, priority = (
        parts[name].to_numpy() for name in ("layer", "index", "target", "source", "priority")
    )
    distance = parts["distance"].fill_null(0).to_numpy()  # null: of another sequence
    limit = reservoir.limits(keep, keep_other, relations)
    stratum = reservoir.strata(relation, distance, relations)
    group = np.ravel_multi_index(
        (before, after, layer, stratum),
        [int(axis.max(initial=0)) + 1 for axis in (before, after, layer, stratum)],
    )
    kept = reservoir.lowest_in_groups(group, limit[stratum], priority, index, target, source)
    return parts.take(kept).unify_dictionaries()
