"""Rows of similarity: Spearman's ρ between the maps of every two scopes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from normlens.analysis.ranks import spearman_matrix
from normlens.corpus.measures.base import Item, Needs, RowMeasure, alike
from normlens.corpus.measures.columns import WHOSE, build
from normlens.maps import Correlations, Maps

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

    def rows(self, item: Item) -> dict[str, pa.Table]:
        maps = item.maps
        correlations = maps.correlations or correlate(maps)
        a, b = np.triu_indices(len(correlations.scopes), k=1)
        columns = {
            "index": item.index,
            "sequence": item.sequence,
            "layer": np.repeat(maps.layers, len(a)),
            "scope_a": np.tile(a, len(maps.layers)),
            "scope_b": np.tile(b, len(maps.layers)),
            "rho": correlations.rho[:, a, b].ravel(),
        }
        labels = {"scope_a": correlations.scopes, "scope_b": correlations.scopes}
        return {"similarity": build(SCHEMA, columns, labels)}


def correlate(maps: Maps) -> Correlations:
    """Take Spearman's ρ between all scopes of `maps`, ranked on the CPU."""
    matrices = []
    for group in alike(maps):
        allowed = maps.allowed[group[0]]
        flat = np.stack([maps[scope][group][:, allowed] for scope in maps.scopes], axis=1)
        matrices.append(spearman_matrix(flat))
    return Correlations(maps.scopes, np.concatenate(matrices))
