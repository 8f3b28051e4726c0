"""Rows about the feed-forward block's vectors, what bypasses it, and its special dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from normlens.corpus.measures.base import Item, Needs, alike, are_among, at_layers
from normlens.corpus.measures.both_stacks import BothStacks
from normlens.corpus.measures.columns import (
    EXACT,
    WHOSE,
    Blocks,
    build,
    count,
    sums,
    sums_sql,
    total,
)
from normlens.corpus.measures.scope_pairs import feed_forward_pairs
from normlens.measures.ranks import spearman_matrix

TABLES = {
    "norms": pa.schema(
        [
            *WHOSE,
            pa.field("layer", pa.int32()),  # from 0
            pa.field("ff_output_norm", pa.float64()),
            pa.field("bypassed_norm", pa.float64()),
        ]
    ),
    "norms_dimensions": pa.schema(
        [
            pa.field("layer", pa.int32()),
            pa.field("dimension", pa.int32()),
            pa.field("sequences", pa.int64()),
            pa.field("count", pa.int64()),  # tokens
            pa.field("sum_input_abs", EXACT),
            pa.field("sum_output_abs", EXACT),
            pa.field("gamma", pa.float64()),
            pa.field("special", pa.bool_()),
        ]
    ),
    "special_dimensions": pa.schema(
        [
            *WHOSE,
            pa.field("layer", pa.int32()),
            pa.field("rho_with", pa.float64()),
            pa.field("rho_without", pa.float64()),
        ]
    ),
}
#: γ and whether a dimension is special belong to the model, not to a sequence
_KEYS = ("layer", "dimension", "gamma", "special")
_SUMS = ("sequences", "count", "sum_input_abs", "sum_output_abs")


class Norms:
    """Mean ‖FF(x′)‖ and ‖x′‖, mean |value| per dimension, and ρ without special dimensions.

    Kobayashi et al. 2024, section 6. Means per sequence are over its tokens; sums per dimension
    are over all tokens, so that ``sum / count`` is the mean of the corpus. ``rho_with`` is
    Spearman's ρ between the map before the block and the block's map, ``rho_without`` the same
    with the special dimensions (lowest γ behind the block) taken out of the block's output.
    Layers without a norm behind the block have null γ and no rows in special_dimensions.
    """

    name = "norms"
    tables: Mapping[str, pa.Schema] = TABLES
    needs = Needs(statistics=True)
    order: Mapping[str, tuple[str, ...]] = {
        "norms": ("index", "layer"),
        "norms_dimensions": ("layer", "dimension"),
        "special_dimensions": ("index", "layer"),
    }
    sql: Mapping[str, str] = {
        "norms_dimensions": sums_sql(
            _KEYS,
            {
                "sequences": count("sequences"),
                "count": count(),
                "sum_input_abs": total("sum_input_abs"),
                "sum_output_abs": total("sum_output_abs"),
            },
            order=("layer", "dimension"),
        )
    }

    @property
    def options(self) -> dict[str, Any]:
        return {}

    def for_two_stacks(self) -> BothStacks:
        return BothStacks(self)

    def rows(self, item: Item) -> dict[str, pa.Table]:
        return {
            "norms": build(TABLES["norms"], self._norms(item)),
            "norms_dimensions": build(TABLES["norms_dimensions"], self._dimensions(item)),
            "special_dimensions": build(TABLES["special_dimensions"], self._special(item)),
        }

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Sum per dimension; keep the other tables' rows as they are."""
        if table != "norms_dimensions":
            return parts
        return sums(parts, _KEYS, _SUMS, self.order[table])

    def _norms(self, item: Item) -> dict[str, Any]:
        statistics = item.maps.statistics
        if "ff_output_norm" not in statistics:
            return {}
        maps = item.maps
        layers = maps.covered("statistics", "ff_output_norm")
        places = are_among(maps.layers, layers)
        means = {
            name: maps.over_layers("statistics", name)[places].mean(axis=1, dtype=np.float64)
            if name in statistics
            else np.nan
            for name in ("ff_output_norm", "bypassed_norm")
        }
        return {**_whose(item), "layer": np.array(layers), **means}

    def _dimensions(self, item: Item) -> dict[str, Any]:
        statistics, n = item.maps.statistics, len(item)
        if "ff_output_mean_abs" not in statistics:
            return {}
        layers, width = statistics["ff_output_mean_abs"].shape
        blocks = item.maps.covered("statistics", "ff_output_mean_abs")
        gamma = np.full((layers, width), np.nan)
        special = np.zeros((layers, width), dtype=bool)
        if "gamma" in statistics:  # of the layers that have a norm behind the block
            normed = are_among(blocks, item.maps.covered("statistics", "gamma"))
            gamma[normed] = statistics["gamma"]
            flags = np.zeros((int(normed.sum()), width), dtype=bool)
            np.put_along_axis(flags, statistics["special_dimensions"], True, axis=1)
            special[normed] = flags
        return {
            "layer": np.repeat(blocks, width),
            "dimension": np.tile(np.arange(width), layers),
            "sequences": 1,
            "count": n,
            "sum_input_abs": n * statistics["ff_input_mean_abs"].astype(np.float64).ravel(),
            "sum_output_abs": n * statistics["ff_output_mean_abs"].astype(np.float64).ravel(),
            "gamma": gamma.astype(np.float64).ravel(),
            "special": special.ravel(),
        }

    def _special(self, item: Item) -> dict[str, Any]:
        maps = item.maps
        if "ff_without_special" not in maps.statistics:
            return {}
        ordinary = maps.over_layers("statistics", "ff_without_special")
        normed = are_among(maps.layers, maps.covered("statistics", "ff_without_special"))
        blocks = Blocks()
        for pair in feed_forward_pairs(maps.scopes):
            for group in alike(maps, *pair):
                group = group[normed[group]]
                if not len(group):
                    continue
                allowed = maps.allowed[group[0]]
                compared = [*(at_layers(maps, scope, group) for scope in pair), ordinary[group]]
                rho = spearman_matrix(np.stack([a[:, allowed] for a in compared], axis=1))
                layer = np.array(maps.layers)[group]
                blocks.add(layer=layer, rho_with=rho[:, 0, 1], rho_without=rho[:, 0, 2])
        return {**columns, **_whose(item)} if (columns := blocks.columns()) else {}


def _whose(item: Item) -> dict[str, Any]:
    return {"index": item.index, "sequence": item.sequence}
