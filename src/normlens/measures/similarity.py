"""How alike the maps of two scopes are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from normlens.analysis.ranks import spearman_matrix
from normlens.measures.base import Item, RowMeasure, alike
from normlens.measures.columns import WHOSE, Blocks, build

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

    def rows(self, item: Item) -> dict[str, pa.Table]:
        maps = item.maps
        names = np.array(maps.scopes, dtype=object)
        a, b = np.triu_indices(len(names), k=1)
        blocks = Blocks()
        for group in alike(maps):
            allowed = maps.allowed[group[0]]
            flat = np.stack([maps[scope][group][:, allowed] for scope in maps.scopes], axis=1)
            rho = spearman_matrix(flat)[:, a, b]  # (layers, pairs of scopes)
            blocks.add(
                layer=np.repeat(np.array(maps.layers)[group], len(a)),
                scope_a=np.tile(names[a], len(group)),
                scope_b=np.tile(names[b], len(group)),
                rho=rho.ravel(),
            )
        whose = {"index": item.index, "sequence": item.sequence}
        return {"similarity": build(SCHEMA, {**blocks.columns(), **whose})}
