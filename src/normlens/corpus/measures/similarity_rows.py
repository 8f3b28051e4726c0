"""Rows of similarity: Spearman's ρ between the maps of every two scopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures.base import Item, Needs, RowMeasure, alike, are_among, at_layers
from normlens.corpus.measures.both_stacks import BothStacks
from normlens.corpus.measures.columns import WHOSE, build
from normlens.measures.ranks import spearman_matrix
from normlens.results.maps import Correlations, Maps
from normlens.scopes import holds

SCHEMA = pa.schema(
    [
        *WHOSE,
        pa.field("layer", pa.int32()),  # from 0
        pa.field("scope_a", pa.string()),
        pa.field("scope_b", pa.string()),
        pa.field("rho", pa.float64()),
    ]
)


class Similarity(RowMeasure):
    """Spearman's ρ of every two scopes, per layer (from 0) and sequence, over allowed pairs.

    Ties get their average rank; null where a map is constant. Kobayashi et al. 2024, section 4.
    """

    name = "similarity"
    tables: Mapping[str, pa.Schema] = {"similarity": SCHEMA}
    order: Mapping[str, tuple[str, ...]] = {"similarity": ("index", "layer", "scope_a", "scope_b")}

    needs = Needs(arrays=False, correlations=True)

    def for_two_stacks(self) -> BothStacks:
        return BothStacks(self)

    def rows(self, item: Item) -> dict[str, pa.Table]:
        maps = item.maps
        correlations = maps.correlations or correlate(maps)
        covered = None
        if maps.coverage:
            covered = tuple(_layers_with(maps, scope) for scope in correlations.scopes)
        pairs = _pairs(tuple(maps.layers), tuple(correlations.scopes), covered)
        columns = {
            "index": item.index,
            "sequence": item.sequence,
            **pairs.columns,
            "rho": correlations.rho[:, pairs.a, pairs.b][pairs.here],
        }
        return {"similarity": build(SCHEMA, columns)}


@dataclass(frozen=True)
class _Pairs:
    """Every two scopes, by their places, and the columns that name them in each layer."""

    a: NDArray[np.intp]
    b: NDArray[np.intp]
    here: NDArray[np.bool_]  # (layer, pair), whether the layer has both
    columns: dict[str, pa.Array]


@lru_cache(maxsize=16)
def _pairs(
    layers: tuple[int, ...],
    scopes: tuple[str, ...],
    covered: tuple[frozenset[int], ...] | None,
) -> _Pairs:
    """The pairs of scopes, the same for all sequences; `covered` are the layers of each scope."""
    a, b = np.triu_indices(len(scopes), k=1)
    here = np.ones((len(layers), len(a)), dtype=bool)
    if covered is not None:
        # ρ alone does not tell: it is NaN for a map without differences, too.
        having = np.array([are_among(layers, some) for some in covered])  # (scope, layer)
        here = (having[a] & having[b]).T
    layer, pair = np.nonzero(here)
    columns = {"layer": np.array(layers)[layer], "scope_a": a[pair], "scope_b": b[pair]}
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    named = build(schema, columns, {"scope_a": scopes, "scope_b": scopes})
    return _Pairs(a, b, here, {name: named[name].chunk(0) for name in columns})


def _layers_with(maps: Maps, scope: str) -> frozenset[int]:
    """The layers that have a scope; its mixing ratios are there even where its maps are not."""
    return frozenset(maps.covered("arrays", scope)) & frozenset(maps.covered("mixing", scope))


def _of_one_sequence(maps: Maps, places: list[int]) -> list[list[int]]:
    """The scopes of the targets' tokens alone, and those of another sequence alone."""
    if maps.source_axis is None:
        return []
    return [
        [k for k in places if holds(maps.scopes[k]) == kind]
        for kind in ((True, False), (False, True))
    ]


def correlate(maps: Maps) -> Correlations:
    """Take Spearman's ρ between all scopes of `maps`, ranked on the CPU."""
    size = len(maps.scopes)
    rho = np.full((len(maps.layers), size, size), np.nan)
    for group in alike(maps):
        layer = maps.layers[group[0]]
        here = [k for k, scope in enumerate(maps.scopes) if layer in maps.layers_of(scope)]
        # All scopes first; those with parts of one sequence alone are then compared there.
        for some in (here, *_of_one_sequence(maps, here)):
            if some:
                allowed = maps.pairs_of(*(maps.scopes[k] for k in some))[group[0]]
                flat = [at_layers(maps, maps.scopes[k], group)[:, allowed] for k in some]
                rho[np.ix_(group, np.array(some), np.array(some))] = spearman_matrix(
                    np.stack(flat, axis=1)
                )
    return Correlations(maps.scopes, rho)
