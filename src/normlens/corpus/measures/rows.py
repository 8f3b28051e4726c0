"""Rows of similarity, mixing ratios, norms and explanations, of one stack or of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from normlens.corpus.measures.base import (
    EXACT,
    FLAG,
    INT,
    LABEL,
    LONG,
    REAL,
    TEXT,
    WHOSE,
    Asked,
    Item,
    Measure,
    Needs,
    RowMeasure,
    RowParts,
    alike,
    are_among,
    at_layers,
    build,
    check_square,
    count,
    schema_of,
    sums,
    sums_sql,
    total,
    whose,
)
from normlens.corpus.measures.tokens import CATEGORIES, categories, feed_forward_pairs
from normlens.errors import InputError
from normlens.measures.ranks import spearman_matrix
from normlens.options import ExplainOptions
from normlens.results.explanation import Explanation
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


SIMILARITY = schema_of(*WHOSE, layer=INT, scope_a=TEXT, scope_b=TEXT, rho=REAL)  # layers from 0


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
        rho = correlations.rho[:, pairs.a, pairs.b][pairs.here]
        return {"similarity": build(SIMILARITY, {**whose(item), **pairs.columns, "rho": rho})}


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


# Rows of heads: which of them look otherwise by norms than by their weights.


HEADS = schema_of(*WHOSE, layer=INT, head=INT, rho=REAL, norm=REAL)


class Heads(RowMeasure):
    """Each head's weights α against its norms ``‖α_ij f(x_j)‖``, per layer and sequence.

    `rho` is Spearman's over allowed pairs, null where either is constant, and low where norms
    correct the weights; `norm` is the mean of the norms. Kobayashi et al. 2020, section 4.
    """

    name = "heads"
    tables: Mapping[str, pa.Schema] = {"heads": HEADS}
    order: Mapping[str, tuple[str, ...]] = {"heads": ("index", "layer", "head")}

    needs = Needs(scopes=("ATTN-N",), heads=True)

    def rows(self, item: Item) -> dict[str, pa.Table]:
        check_square(item, self.name)
        maps, rows = item.maps, RowParts()
        weights, norms = (maps.heads[scope] for scope in ("ATTN-W", "ATTN-N"))
        for place, layer in enumerate(maps.layers_of("ATTN-N")):
            allowed = maps.allowed[maps.layers.index(layer)]
            both = np.stack([weights[place][:, allowed], norms[place][:, allowed]], axis=1)
            rho = spearman_matrix(both)[:, 0, 1]
            mean = both[:, 1].mean(-1, dtype=np.float64)
            rows.add(layer=layer, head=np.arange(len(rho)), rho=rho, norm=mean)
        return {"heads": build(HEADS, {**whose(item), **rows.columns()})}


# Rows of the mixing ratio: how much of a token's vector comes from other tokens.


MIXING = schema_of(
    *WHOSE, layer=INT, scope=TEXT, position=INT, token_id=INT, category=TEXT, ratio=REAL
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
            **whose(item),
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
    "norms": schema_of(*WHOSE, layer=INT, ff_output_norm=REAL, bypassed_norm=REAL),
    "norms_dimensions": schema_of(
        layer=INT,
        dimension=INT,
        sequences=LONG,
        count=LONG,  # tokens
        sum_input_abs=EXACT,
        sum_output_abs=EXACT,
        gamma=REAL,
        special=FLAG,
    ),
    "special_dimensions": schema_of(*WHOSE, layer=INT, rho_with=REAL, rho_without=REAL),
}
#: γ and whether a dimension is special belong to the model, not to a sequence
_KEYS = ("layer", "dimension", "gamma", "special")
_SUMS = {"sequences": count, "count": count, "sum_input_abs": total, "sum_output_abs": total}


class Norms(RowMeasure):
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
            _KEYS, {name: of(name) for name, of in _SUMS.items()}, order=("layer", "dimension")
        )
    }

    def for_two_stacks(self) -> BothStacks:
        return BothStacks(self)

    def rows(self, item: Item) -> dict[str, pa.Table]:
        made = (self._norms(item), self._dimensions(item), self._special(item))
        return {
            name: build(schema, columns)
            for (name, schema), columns in zip(TABLES.items(), made, strict=True)
        }

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Sum per dimension; keep the other tables' rows as they are."""
        if table != "norms_dimensions":
            return parts
        return sums(parts, _KEYS, [*_SUMS], self.order[table])

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
        return {**whose(item), "layer": np.array(layers), **means}

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
        blocks = RowParts()
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
        made = blocks.columns()
        return {**made, **whose(item)} if made else {}


# Rows of explanations: which tokens made the model say this, over a corpus.


#: where the score is read; null for a classifier that pools its tokens
_READ_AT = pa.field("read_at", INT)
EXPLANATIONS = {
    "explanations": schema_of(
        *WHOSE,
        _READ_AT,
        target_id=INT,
        target=TEXT,
        contrast_id=INT,
        contrast=TEXT,
        value=REAL,
        probability=REAL,
        remainder=REAL,  # what no token owns
        completeness=REAL,
    ),
    "explanation_tokens": schema_of(
        *WHOSE, _READ_AT, position=INT, token_id=INT, token=LABEL, contribution=REAL
    ),
    # The head is of an attention; null: the component has none. The value is over all positions.
    "explanation_components": schema_of(
        *WHOSE, _READ_AT, layer=INT, component=LABEL, head=INT, value=REAL
    ),
    # A null layer: what stands behind the last.
    "explanation_bias": schema_of(*WHOSE, _READ_AT, layer=INT, component=LABEL, value=REAL),
}


class ExplanationsMeasure(RowMeasure):
    """What each token, component and bias contributes to a score of every sequence.

    `target`, `contrast`, `position` and `first_piece` as in `Lens.explain`: by default what the
    model says, at the last position of a causal model and at the mask of a masked one. Of an
    encoder–decoder, `position` is a place in its target, by default each in turn.
    """

    name = "explanations"
    tables: Mapping[str, pa.Schema] = EXPLANATIONS
    order: Mapping[str, tuple[str, ...]] = {
        "explanations": ("index", "read_at"),
        "explanation_tokens": ("index", "read_at", "position"),
        "explanation_components": ("index", "read_at", "layer", "component", "head"),
        "explanation_bias": ("index", "read_at", "layer", "component"),
    }

    def __init__(
        self,
        target: str | int | None = None,
        contrast: str | int | None = None,
        position: str | int | None = None,
        first_piece: bool = False,
        nonlinearity: str = ExplainOptions.nonlinearity,
    ):
        for name, value in (("target", target), ("contrast", contrast), ("position", position)):
            if value is not None and not isinstance(value, str | int):
                raise InputError(f"explanations.{name} is a word or a number, not {value!r}")
        if isinstance(position, str) and position != "all":
            raise InputError(f"explanations.position is a number or 'all', not {position!r}")
        ExplainOptions(nonlinearity=nonlinearity, first_piece=first_piece)
        self.given = self.asked = Asked(target, contrast, position, bool(first_piece), nonlinearity)

    def for_two_stacks(self) -> PairExplanations:
        return PairExplanations(self.given)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, asked=self.asked)

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self.given).items() if value is not None}

    def rows(self, item: Item) -> dict[str, pa.Table]:
        made = [self._rows(item, why) for why in item.explanations]
        return {
            name: pa.concat_tables([schema.empty_table(), *(rows[name] for rows in made)])
            for name, schema in self.tables.items()
        }

    def _rows(self, item: Item, why: Explanation) -> dict[str, pa.Table]:
        """The rows of one explanation; a table takes of its columns those that it has."""
        read_at = np.nan if why.position is None else why.position
        others = dict.fromkeys(name for _, name, _ in why.biases if name not in why.component_names)
        labels: dict[str, Sequence[str]] = {
            "part": [part.name for part in why.sequences],
            "stack": (ENCODER, DECODER),
            "token": why.tokens,
            "component": [*why.component_names, *others],
        }
        made = {
            name: build(self.tables[name], {**whose(item), "read_at": read_at, **columns}, labels)
            for name, columns in (
                ("explanation_tokens", _token_columns(why)),
                ("explanation_components", _component_columns(why)),
                ("explanation_bias", _bias_columns(why, labels["component"])),
            )
        }
        schema = self.tables["explanations"]
        score = {name: getattr(why, name, None) for name in schema.names} | whose(item)
        score |= asdict(why.shares) if why.has_two_sequences else {}
        score["read_at"] = why.position
        return {"explanations": pa.Table.from_pylist([score], schema=schema), **made}


def _token_columns(why: Explanation) -> dict[str, Any]:
    """The tokens of the text, or of the source and of the target's prefix that had been read."""
    rows = RowParts()
    for place, part in enumerate(why.sequences):
        positions = np.arange(len(part))
        rows.add(part=place, position=positions, contribution=part.contributions)
    ids = (why.token_ids or [])[: why.seen]
    return {**rows.columns(), "token_id": ids, "token": np.arange(why.seen)}


def _component_columns(why: Explanation) -> dict[str, Any]:
    """Layer, component, head and value of each row.

    Attentions have a row per head and none as a whole, so that no sum of rows of a layer counts
    anything twice. What a layer lacks has no row.
    """
    names, rows = why.component_names, RowParts()
    by_head = {"ATTN": why.heads, "CROSS": why.cross_heads}
    sums = why.components.sum(-1)  # (layer, component), NaN where a layer lacks it
    for place, name in enumerate(names):
        shares = by_head.get(name)
        if shares is None:
            (layer,) = np.nonzero(~np.isnan(sums[:, place]))
            head, values = np.full(len(layer), np.nan), sums[layer, place]
        else:
            heads = shares.sum(-1, dtype=np.float64)  # (layer, head)
            layer, head = np.nonzero(~np.isnan(heads))
            head, values = head.astype(float), heads[layer, head]
        rows.add(layer=layer, component=place, head=head, value=values)
    columns = rows.columns()
    return {**columns, **_in_stacks(columns["layer"], why)}


def _bias_columns(why: Explanation, names: Sequence[str]) -> dict[str, Any]:
    # What stands behind the last layer is the decoder's.
    layers = [np.nan if isinstance(at, str) else at for at, *_ in why.biases]
    return {
        "component": [names.index(name) for _, name, _ in why.biases],
        "value": [share for *_, share in why.biases],
        **_in_stacks(np.array(layers, float), why),
    }


def _in_stacks(layers: NDArray[Any], why: Explanation) -> dict[str, NDArray[Any]]:
    """The stack of each of an explanation's layers, and its place there."""
    inside = layers < why.encoder_layers
    places = np.where(inside, layers, layers - why.encoder_layers)
    return {"stack": np.where(inside, 0, 1), "layer": places}


_ALL = "all"


class PairExplanations(ExplanationsMeasure):
    """What each token of source and prefix contributes to the tokens of every target.

    `explanations` has a row for each token that is explained: its logit, what the tokens of the
    source and of the prefix before it supply together, and their shares. Positions count in each
    sequence ("source", or "prefix" of the target), layers in each stack.
    """

    tables: Mapping[str, pa.Schema] = {
        # What both sequences supply of the score, as in `Explanation.shares`.
        "explanations": schema_of(
            *EXPLANATIONS["explanations"],
            source=REAL,
            prefix=REAL,
            source_share=REAL,
            source_share_absolute=REAL,
        ),
        "explanation_tokens": with_column(
            EXPLANATIONS["explanation_tokens"], pa.field("part", LABEL)
        ),
        "explanation_components": with_column(EXPLANATIONS["explanation_components"], STACK),
        "explanation_bias": with_column(EXPLANATIONS["explanation_bias"], STACK),
    }
    order: Mapping[str, tuple[str, ...]] = {
        "explanations": ("index", "read_at"),
        "explanation_tokens": ("index", "read_at", "part", "position"),
        "explanation_components": ("index", "read_at", "stack", "layer", "component", "head"),
        "explanation_bias": ("index", "read_at", "stack", "layer", "component"),
    }

    def __init__(self, given: Asked):
        if given.target is not None:
            raise InputError(
                "the target of an encoder–decoder is the text beside its source; leave "
                "explanations.target out and choose the token by explanations.position"
            )
        if given.contrast is not None and given.position in (None, _ALL):
            raise InputError(
                "explanations.contrast is compared with one token of each target; choose it by "
                "explanations.position, such as -1"
            )
        self.given = given
        self.asked = replace(given, position=_ALL if given.position is None else given.position)
