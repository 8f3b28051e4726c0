"""Rows of the mixing ratio: how much of a token's vector comes from other tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from normlens.corpus.measures.base import Item, RowMeasure, are_among
from normlens.corpus.measures.both_stacks import BothStacks
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

    def for_two_stacks(self) -> BothStacks:
        return BothStacks(self)

    def rows(self, item: Item) -> dict[str, pa.Table]:
        maps, n = item.maps, len(item)
        scopes = [scope for scope in maps.scopes if scope in maps.mixing]
        ratios = [maps.over_layers("mixing", scope) for scope in scopes]
        ratio = np.array(ratios).reshape(-1, len(maps.layers), n).swapaxes(0, 1)
        here = np.array([are_among(maps.layers, maps.covered("mixing", name)) for name in scopes])
        layer, scope = np.nonzero(here.T.reshape(ratio.shape[:2]))
        columns = {
            "index": item.index,
            "sequence": item.sequence,
            "layer": np.repeat(np.array(maps.layers)[layer], n),
            "scope": np.repeat(scope, n),
            "position": np.tile(np.arange(n), len(layer)),
            "token_id": np.tile(item.encoded.ids, len(layer)),
            "category": np.tile(categories(item), len(layer)),
            "ratio": ratio[layer, scope].ravel(),
        }
        labels = {"scope": scopes, "category": CATEGORIES}
        return {"mixing": build(SCHEMA, columns, labels)}
