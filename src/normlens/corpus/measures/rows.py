"""Rows of similarity, mixing ratios and norms, of one stack or of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from normlens.corpus.measures.base import (
    EXACT,
    LABEL,
    WHOSE,
    Blocks,
    Item,
    Measure,
    Needs,
    RowMeasure,
    alike,
    are_among,
    at_layers,
    build,
    count,
    sums,
    sums_sql,
    total,
)
from normlens.corpus.measures.tokens import CATEGORIES, categories, feed_forward_pairs
from normlens.measures.ranks import spearman_matrix
from normlens.results.maps import Correlations, Maps
from normlens.scopes import holds

# Measures of both stacks of an encoder–decoder: every row says which stack it is about.


#: The stack whose vectors a row is about. CROSS: from tokens of the encoder to the decoder's.
ENCODER, DECODER, CROSS = STACKS = "encoder", "decoder", "cross"
STACK = pa.field("stack", LABEL)

#: The rows of one pair, stack by stack.
ByStack = Iterable[tuple[str, dict[str, pa.Table]]]


def for_two_stacks(measure: Measure) -> Measure:
    """The form of a measure for an encoder–decoder; a measure without one stays as it is."""
    made = getattr(measure, "for_two_stacks", None)
    return measure if made is None else made()


class BothStacks:
    """A measure of one stack, taken of both; its tables have the column `stack` beside the others.

    `by_stack` gives a pair's rows; by default they are those of the encoder's maps and those of the
    decoder's.
    """

    def __init__(self, measure: Measure, by_stack: Callable[[Item], ByStack] | None = None):
        self.measure = measure
        self.by_stack = by_stack or self._encoder_and_decoder
        self.name = measure.name
        self.tables = {name: with_column(schema, STACK) for name, schema in measure.tables.items()}
        self.order = {name: _order(columns) for name, columns in measure.order.items()}
        # A name may mean a scope of one stack alone, so all of both are asked for.
        self.needs: Needs = replace(measure.needs, scopes=None)

    @property
    def options(self) -> dict[str, Any]:
        return self.measure.options

    @property
    def sql(self) -> Mapping[str, str]:
        return {table: _each_stack(sql) for table, sql in self.measure.sql.items()}

    def rows(self, item: Item) -> dict[str, pa.Table]:
        """Measure one pair: the rows of both stacks."""
        return self._joined(self.by_stack(item))

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Merge the rows of each stack apart."""
        merged: ByStack = (
            (stack, {table: self.measure.combine(table, _of_stack(parts, stack))})
            for stack in STACKS
        )
        return self._joined(merged)[table]

    def _encoder_and_decoder(self, item: Item) -> Iterator[tuple[str, dict[str, pa.Table]]]:
        if item.maps.encoder is not None:
            yield ENCODER, self.measure.rows(encoder_item(item))
        yield DECODER, self.measure.rows(item)

    def _joined(self, by_stack: ByStack) -> dict[str, pa.Table]:
        parts: dict[str, list[pa.Table]] = {}
        for stack, tables in by_stack:
            for name, rows in tables.items():
                parts.setdefault(name, []).append(_labelled(rows, stack, self.tables[name]))
        return {
            name: pa.concat_tables([self.tables[name].empty_table(), *rows]).unify_dictionaries()
            for name, rows in parts.items()
        }


def encoder_item(item: Item) -> Item:
    """What the encoder read and its maps, as a measure of one stack receives them."""
    source, maps = item.source, item.maps.encoder
    assert source is not None
    assert maps is not None
    return replace(item, encoded=source, maps=maps)


def with_column(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    """A schema with further columns, behind those that say whose a row is."""
    place = len([field for field in schema if field in WHOSE])
    columns = list(schema)
    return pa.schema([*columns[:place], *fields, *columns[place:]])


def _order(columns: tuple[str, ...]) -> tuple[str, ...]:
    first = int(columns[0] == "index")
    return (*columns[:first], STACK.name, *columns[first:])


def _labelled(rows: pa.Table, stack: str, schema: pa.Schema) -> pa.Table:
    labels = pa.repeat(pa.scalar(stack), rows.num_rows).dictionary_encode().cast(LABEL)
    place = schema.names.index(STACK.name)
    return rows.add_column(place, STACK, labels).cast(schema)


def _of_stack(parts: pa.Table, stack: str) -> pa.Table:
    column = parts[STACK.name].cast(pa.string())
    return parts.filter(pc.equal(column, stack)).drop_columns([STACK.name])


def _each_stack(sql: str) -> str:
    """The SQL that merges one stack's rows, for every stack."""
    union, named = "FROM parts", f'"{STACK.name}"'
    assert sql.count(union) == 1  # the whole of a built-in measure's tables are read once
    selected = (
        f"SELECT '{stack}' AS {named}, * FROM ("
        + sql.replace(union, f"FROM (SELECT * EXCLUDE ({named}) {union} WHERE {named} = '{stack}')")
        + ")"
        for stack in STACKS
    )
    return " UNION ALL ".join(selected)


# Rows of similarity: Spearman's ρ between the maps of every two scopes.


SIMILARITY = pa.schema(
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
    tables: Mapping[str, pa.Schema] = {"similarity": SIMILARITY}
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
        return {"similarity": build(SIMILARITY, columns)}


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
    schema = pa.schema([SIMILARITY.field(name) for name in columns])
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


# Rows of the mixing ratio: how much of a token's vector comes from other tokens.


MIXING = pa.schema(
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
    tables: Mapping[str, pa.Schema] = {"mixing": MIXING}
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
        return {"mixing": build(MIXING, columns, labels)}


# Rows about the feed-forward block's vectors, what bypasses it, and its special dimensions.


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
