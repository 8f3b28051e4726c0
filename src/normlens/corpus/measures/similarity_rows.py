"""Rows of similarity: Spearman's ρ between the maps of every two scopes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.analysis.ranks import spearman_matrix
from normlens.corpus.measures.base import Item, Needs, RowMeasure, alike, at_layers
from normlens.corpus.measures.both_stacks import BothStacks
from normlens.corpus.measures.columns import WHOSE, build
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
        a, b = np.triu_indices(len(correlations.scopes), k=1)
        columns = {
            "layer": np.repeat(maps.layers, len(a)),
            "scope_a": np.tile(a, len(maps.layers)),
            "scope_b": np.tile(b, len(maps.layers)),
            "rho": correlations.rho[:, a, b].ravel(),
        }
        if maps.coverage:
            # Both scopes are in the layer; ρ itself is NaN for a map without differences, too.
            here = np.array([_has_layers(maps, scope) for scope in correlations.scopes])
            both = (here[a] & here[b]).T.ravel()
            columns = {name: values[both] for name, values in columns.items()}
        labels = {"scope_a": correlations.scopes, "scope_b": correlations.scopes}
        whose = {"index": item.index, "sequence": item.sequence}
        return {"similarity": build(SCHEMA, {**whose, **columns}, labels)}


def _has_layers(maps: Maps, scope: str) -> NDArray[np.bool_]:
    """Whether each layer has a scope; its mixing ratios are there even where its maps are not."""
    covered = [maps.covered(group, scope) for group in ("arrays", "mixing")]
    return np.isin(maps.layers, covered[0]) & np.isin(maps.layers, covered[1])


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
