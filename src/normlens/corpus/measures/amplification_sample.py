"""The sample of FF-amp: the pairs of a sequence that may be in it, and those that stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures import reservoir
from normlens.corpus.measures.base import Item
from normlens.corpus.measures.columns import codes
from normlens.corpus.measures.token_pairs import TokenPairs


def candidates(
    item: Item,
    pairs: TokenPairs,
    layers: NDArray[np.int64],
    at: NDArray[np.intp],
    relations: Sequence[str],
    keep: tuple[int, int],
) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """Choose pairs that a sample may hold, as places in (layers, at), with their priorities.

    `keep` are the sizes of a stratum of related and of other pairs.
    """
    priority = reservoir.priorities(
        item.seed, item.sequence, layers[:, None], pairs.target[at], pairs.source[at]
    )
    stratum = reservoir.strata(pairs.relation[at], pairs.distance[at], relations)
    limit = reservoir.limits(*keep, relations)
    kept = [reservoir.lowest(row, stratum, limit) for row in priority]
    chosen = np.concatenate([place * len(at) + row for place, row in enumerate(kept)])
    return chosen, priority.ravel()[chosen]


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
