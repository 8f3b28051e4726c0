"""The pairs of one sequence's tokens, and sums over the pairs that have something in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normlens.measures.base import Item
from normlens.measures.tokens import RELATIONS, relations

Columns = dict[str, NDArray]


class TokenPairs:
    """Every (target i, source j) of a sequence; arrays are flat, (n · n,), targets first."""

    def __init__(self, item: Item):
        self.n = len(item)
        self.target, self.source = (axis.ravel() for axis in np.indices((self.n, self.n)))
        self.distance = np.abs(self.target - self.source)
        self.relation = relations(item).ravel()
        self.type_ids, first, kind = np.unique(
            item.encoded.ids, return_index=True, return_inverse=True
        )
        self.type_tokens = [item.encoded.tokens[place] for place in first]
        self.types = kind[self.source] * len(self.type_ids) + kind[self.target]

    def counted(self, exclude_same_type: bool, exclude_special: bool) -> NDArray[np.bool_]:
        """Pairs that FF-amp is taken of: i ≠ j, and what the options leave."""
        counted = self.distance > 0
        if exclude_same_type:
            size = len(self.type_ids)
            counted &= self.types // size != self.types % size
        if exclude_special:
            counted &= self.relation != RELATIONS.index("special")
        return counted

    def by_type(
        self, at: NDArray[np.intp], before: NDArray[np.float64], after: NDArray[np.float64]
    ) -> Columns:
        """Sums over the pairs `at` with the same two subword types, in the order of their ids."""
        size = len(self.type_ids)
        group = self.types[at]
        counts = np.bincount(group, minlength=size * size)
        found = np.flatnonzero(counts)
        source, target = found // size, found % size
        return {
            "source_id": self.type_ids[source],
            "target_id": self.type_ids[target],
            "source_token": source,
            "target_token": target,
            "count": counts[found],
            "sum_before": np.bincount(group, before, minlength=size * size)[found],
            "sum_after": np.bincount(group, after, minlength=size * size)[found],
        }

    def by_distance(self, at: NDArray[np.intp], score: NDArray[np.float64]) -> Columns:
        """Sums over the pairs `at` with the same relation and distance |i − j|."""
        group = self.relation[at].astype(np.int64) * self.n + self.distance[at]
        counts = np.bincount(group)
        found = np.flatnonzero(counts)
        return {
            "relation": found // self.n,
            "distance": found % self.n,
            "count": counts[found],
            "sum": np.bincount(group, score)[found],
            "sum_squares": np.bincount(group, score * score)[found],
        }

    def listed(self, at: NDArray[np.intp]) -> Columns:
        """What the pairs `at` are."""
        return {
            "relation": self.relation[at],
            "distance": self.distance[at],
            "target": self.target[at],
            "source": self.source[at],
        }
