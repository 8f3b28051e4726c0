"""The pairs of one sequence's tokens, and sums over pairs with the same types or distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.measures.base import Item
from normlens.corpus.measures.tokens import RELATIONS, Relation, relations

Columns = dict[str, NDArray[Any]]


class TokenPairs:
    """Every (target i, source j) of a sequence; arrays are flat, (n · n,), targets first."""

    def __init__(self, item: Item, user_relations: Mapping[str, Relation] | None = None):
        self.n = len(item)
        self.target, self.source = (axis.ravel() for axis in np.indices((self.n, self.n)))
        self.distance = np.abs(self.target - self.source)
        self.relation = relations(item, user_relations).ravel()
        self.type_ids, first, kind = np.unique(
            item.encoded.ids, return_index=True, return_inverse=True
        )
        self.type_tokens = [item.encoded.tokens[place] for place in first]
        self.types = kind[self.source] * len(self.type_ids) + kind[self.target]
        # Few of the possible (relation, source type, target type) occur: they are numbered.
        self.kinds, self.kind = np.unique(
            self.relation.astype(np.int64) * len(self.type_ids) ** 2 + self.types,
            return_inverse=True,
        )

    def counted(self, exclude_same_type: bool, exclude_special: bool) -> NDArray[np.bool_]:
        """Mark the pairs that FF-amp is taken of: i ≠ j, less what the options exclude."""
        counted = self.distance > 0
        if exclude_same_type:
            size = len(self.type_ids)
            counted &= self.types // size != self.types % size
        if exclude_special:
            counted &= self.relation != RELATIONS.index("special")
        return counted

    def by_type(
        self,
        layers: NDArray[np.int64],
        at: NDArray[np.intp],
        before: NDArray[np.float64],
        after: NDArray[np.float64],
    ) -> Columns:
        """Sum over the pairs `at` of one relation with the same two subword types, by layer.

        `before` and `after` hold each layer's values of the pairs, (layers, pairs).
        """
        size = len(self.type_ids)
        distance = np.broadcast_to(self.distance[at].astype(np.float64), before.shape)
        layer, kind, (counts, before, after, distance) = _sums(
            self.kind[at], before, after, distance
        )
        relation, types = np.divmod(self.kinds[kind], size**2)
        source, target = np.divmod(types, size)
        return {
            "layer": layers[layer],
            "relation": relation,
            "source_id": self.type_ids[source],
            "target_id": self.type_ids[target],
            "source_token": source,
            "target_token": target,
            "count": counts,
            "sum_before": before,
            "sum_after": after,
            "sum_distance": distance.astype(np.int64),
        }

    def by_distance(
        self, layers: NDArray[np.int64], at: NDArray[np.intp], score: NDArray[np.float64]
    ) -> Columns:
        """Sum over the pairs `at` with the same relation and distance |i − j|, by layer."""
        group = self.relation[at].astype(np.int64) * self.n + self.distance[at]
        layer, kind, (counts, score, squares) = _sums(group, score, score * score)
        relation, distance = np.divmod(kind, self.n)
        return {
            "layer": layers[layer],
            "relation": relation,
            "distance": distance,
            "count": counts,
            "sum": score,
            "sum_squares": squares,
        }

    def listed(self, at: NDArray[np.intp]) -> Columns:
        """Describe the pairs `at`: relation, distance, target and source."""
        return {
            "relation": self.relation[at],
            "distance": self.distance[at],
            "target": self.target[at],
            "source": self.source[at],
        }


def _sums(
    group: NDArray[np.int64], *values: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.intp], list[NDArray[Any]]]:
    """Count and sum each layer's groups that occur: (pairs,) and (layers, pairs) → flat."""
    size, layers = int(group.max(initial=0)) + 1, len(values[0])
    flat = (group + size * np.arange(layers)[:, None]).ravel()
    counts = np.bincount(flat)
    occupied = np.flatnonzero(counts)
    totals = [np.bincount(flat, value.ravel())[occupied] for value in values]
    layer, kind = np.divmod(occupied, size)
    return layer, kind, [counts[occupied], *totals]
