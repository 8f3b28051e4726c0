"""The pairs of a map's tokens, and sums over pairs with the same types or distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.measures.base import Item
from normlens.corpus.measures.tokens import (
    RELATIONS,
    Relation,
    relations,
    relations_across,
)

if TYPE_CHECKING:  # it needs torch, which those who read a run's tables do not
    from normlens.inputs.text import Encoded

Columns = dict[str, NDArray[Any]]


class TokenPairs:
    """Every (target i, source j) of a map; arrays are flat, (n · m,), targets first."""

    def __init__(
        self,
        targets: Encoded,
        sources: Encoded,
        relation: NDArray[np.int16],
        distance: NDArray[np.int64] | None,
    ):
        self.target, self.source = (axis.ravel() for axis in np.indices(relation.shape))
        #: |i − j|; 0 where sources are of another text, whose positions say nothing
        self.distance = np.zeros_like(self.target) if distance is None else distance.ravel()
        self.has_distance = distance is not None
        self.size = len(targets.ids)
        self.relation = relation.ravel()
        self.source_types, self.target_types = _Types.of(sources), _Types.of(targets)
        self.types = self.source_types.kind[self.source] * len(self.target_types)
        self.types += self.target_types.kind[self.target]
        self.same_subword = self._same_subword()
        # Few of the possible (relation, source type, target type) occur: they are numbered.
        self.possible = len(self.source_types) * len(self.target_types)
        self.kinds, self.kind = np.unique(
            self.relation.astype(np.int64) * self.possible + self.types, return_inverse=True
        )

    @classmethod
    def of_text(
        cls, item: Item, user_relations: Mapping[str, Relation] | None = None
    ) -> TokenPairs:
        """The pairs of two tokens of one text."""
        places = np.arange(len(item))
        distance = np.abs(places[:, None] - places)
        return cls(item.encoded, item.encoded, relations(item, user_relations), distance)

    @classmethod
    def across(cls, item: Item) -> TokenPairs:
        """The pairs of a decoder's token and one of the text that its encoder read."""
        assert item.source is not None
        return cls(item.encoded, item.source, relations_across(item), None)

    def counted(self, exclude_same_type: bool, exclude_special: bool) -> NDArray[np.bool_]:
        """Mark the pairs that FF-amp is taken of: i ≠ j, less what the options exclude."""
        counted = self.distance > 0 if self.has_distance else np.ones(len(self.target), dtype=bool)
        if exclude_same_type:
            counted &= ~self.same_subword
        if exclude_special:
            counted &= self.relation != RELATIONS.index("special")
        return counted

    def _same_subword(self) -> NDArray[np.bool_]:
        """Whether the two tokens of a pair are of one subword type."""
        source, target = np.divmod(self.types, len(self.target_types))
        if self.has_distance:
            return np.asarray(source == target)
        # Two texts may have two vocabularies, in which equal tokens have other ids.
        of_source, of_target = (
            np.array(types.tokens, object) for types in (self.source_types, self.target_types)
        )
        return np.asarray(of_source[source] == of_target[target], bool)

    def ids(self, at: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The token ids of the sources and of the targets of the pairs `at`."""
        source, target = np.divmod(self.types[at], len(self.target_types))
        return self.source_types.ids[source], self.target_types.ids[target]

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
        distance = np.broadcast_to(self.distance[at].astype(np.float64), before.shape)
        layer, kind, (counts, before, after, distance) = _sums(
            self.kind[at], before, after, distance
        )
        relation, types = np.divmod(self.kinds[kind], self.possible)
        source, target = np.divmod(types, len(self.target_types))
        return {
            "layer": layers[layer],
            "relation": relation,
            "source_id": self.source_types.ids[source],
            "target_id": self.target_types.ids[target],
            "source_token": source,
            "target_token": target,
            "count": counts,
            "sum_before": before,
            "sum_after": after,
            "sum_distance": self._known(distance.astype(np.int64)),
        }

    def by_distance(
        self, layers: NDArray[np.int64], at: NDArray[np.intp], score: NDArray[np.float64]
    ) -> Columns:
        """Sum over the pairs `at` with the same relation and distance |i − j|, by layer.

        Pairs of one subword and of two are summed apart.
        """
        group = self.relation[at].astype(np.int64) * 2 + self.same_subword[at]
        group = group * self.size + self.distance[at]
        layer, kind, (counts, score, squares) = _sums(group, score, score * score)
        group, distance = np.divmod(kind, self.size)
        relation, same_subword = np.divmod(group, 2)
        return {
            "layer": layers[layer],
            "relation": relation,
            "same_subword": same_subword.astype(bool),
            "distance": self._known(distance),
            "count": counts,
            "sum": score,
            "sum_squares": squares,
        }

    def listed(self, at: NDArray[np.intp]) -> Columns:
        """Describe the pairs `at`: relation, distance, target, source, and if they are one type."""
        return {
            "relation": self.relation[at],
            "same_subword": self.same_subword[at],
            "distance": self._known(self.distance[at]),
            "target": self.target[at],
            "source": self.source[at],
        }

    def _known(self, distance: NDArray[Any]) -> NDArray[Any]:
        """The distances, or null where there are none."""
        return distance if self.has_distance else np.full(len(distance), np.nan)


@dataclass(frozen=True)
class _Types:
    """The subword types of one text."""

    ids: NDArray[np.int64]
    tokens: list[str]
    kind: NDArray[np.intp]  # of each token, its place among the types

    @classmethod
    def of(cls, encoded: Encoded) -> _Types:
        ids, first, kind = np.unique(encoded.ids, return_index=True, return_inverse=True)
        return cls(ids, [encoded.tokens[place] for place in first], kind)

    def __len__(self) -> int:
        return len(self.ids)


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
