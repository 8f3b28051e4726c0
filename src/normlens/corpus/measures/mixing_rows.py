"""Rows of the mixing ratio: how much of a token's vector comes from other tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from normlens.corpus.measures.base import Item, RowMeasure
from normlens.corpus.measures.columns import WHOSE, build
from normlens.corpus.measures.tokens import CATEGORIES, categories

SCHEMA = pa.schema(
    [
        *WHOSE,
        pa.field("layer", pa.int32()),  # from 0
        pa.field("scope", pa.string()),
        pa.field("position", pa.int32()),
        pa.field("token_id", pa.int32()),
        pa.field("category", pa.string()),
        pa.field("ratio", pa.float64()),
    ]
)


class Mixing(RowMeasure):
    """``‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖)`` of every token, scope and layer.

    Kobayashi et al. 2021, section 4; categories of tokens as in `tokens.categories`.
    """

    name = "mixing"
    tables: Mapping[str, pa.Schema] = {"mixing": SCHEMA}
    order: Mapping[str, tuple[str, ...]] = {"mixing": ("index", "layer", "scope", "position")}

    def rows(self, item: Item) -> dict[str, pa.Table]:
        maps, n = item.maps, len(item)
        scopes = [scope for scope in maps.scopes if scope in maps.mixing]
        ratio = np.array([maps.mixing[scope] for scope in scopes]).reshape(-1, len(maps.layers), n)
        blocks = ratio.shape[0] * ratio.shape[1]
        columns = {
            "index": item.index,
            "sequence": item.sequence,
            "layer": np.repeat(maps.layers, len(scopes) * n),
            "scope": np.tile(np.repeat(np.arange(len(scopes)), n), len(maps.layers)),
            "position": np.tile(np.arange(n), blocks),
            "token_id": np.tile(item.encoded.ids, blocks),
            "category": np.tile(categories(item), blocks),
            "ratio": ratio.swapaxes(0, 1).ravel(),
        }
        labels = {"scope": scopes, "category": CATEGORIES}
        return {"mixing": build(SCHEMA, columns, labels)}
