"""Rows of similarity, heads, mixing ratios, norms and explanations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures.base import (
    EXACT,
    FLAG,
    INT,
    LABEL,
    LONG,
    REAL,
    STACK,
    TEXT,
    WHOSE,
    Asked,
    Item,
    Measure,
    Needs,
    RowParts,
    Table,
    TableMeasure,
    alike,
    are_among,
    at_layers,
    check_square,
    count,
    schema_of,
    total,
    whose,
)
from normlens.corpus.measures.tokens import CATEGORIES, categories, feed_forward_pairs
from normlens.errors import InputError, require
from normlens.measures.ranks import spearman_matrix
from normlens.options import ExplainOptions
from normlens.results.explanation import Explanation
from normlens.results.maps import Correlations, Maps
from normlens.scopes import holds

# Rows of similarity: Spearman's ρ between the maps of every two scopes.


class Similarity(TableMeasure):
    """Spearman's ρ of every two scopes, per layer (from 0) and sequence, over allowed pairs.

    Ties get their average rank; null where a map is constant. Kobayashi et al. 2024, section 4.
    """

    name = "similarity"
    declared: Mapping[str, Table] = {
        "similarity": Table(
            schema_of(*WHOSE, STACK, layer=INT, scope_a=TEXT, scope_b=TEXT, rho=REAL),
            ("index", "stack", "layer", "scope_a", "scope_b"),
        )
    }
    needs = Needs(arrays=False, correlations=True)

    def of_stack(self, item: Item) -> dict[str, pa.Table]:
        maps = item.maps
        correlations = maps.correlations or correlate(maps)
        a, b = np.triu_indices(len(correlations.scopes), k=1)
        # ρ alone does not tell which layers have both: it is NaN of a constant map, too.
        has = np.array([_has(maps, scope) for scope in correlations.scopes])  # (scope, layer)
        columns = {
            **whose(item),
            "layer": np.array(maps.layers)[:, None],
            "scope_a": a,
            "scope_b": b,
            "rho": correlations.rho[:, a, b],
        }
        labels = dict.fromkeys(("scope_a", "scope_b"), correlations.scopes)
        return {"similarity": self.build("similarity", columns, labels, (has[a] & has[b]).T)}


def _has(maps: Maps, scope: str) -> NDArray[np.bool_]:
    """Which layers have a scope; its mixing ratios are there even where its maps are not."""
    covered = {*maps.covered("arrays", scope)} & {*maps.covered("mixing", scope)}
    return are_among(maps.layers, covered)


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


class Heads(TableMeasure):
    """Each head's weights α against its norms ``‖α_ij f(x_j)‖``, per layer and sequence.

    `rho` is Spearman's over allowed pairs, null where either is constant, and low where norms
    correct the weights; `norm` is the mean of the norms. Kobayashi et al. 2020, section 4.
    """

    name = "heads"
    declared: Mapping[str, Table] = {
        "heads": Table(
            schema_of(*WHOSE, layer=INT, head=INT, rho=REAL, norm=REAL), ("index", "layer", "head")
        )
    }
    needs = Needs(scopes=("ATTN-N",), heads=True)

    def for_two_stacks(self) -> Measure:
        return self

    def of_stack(self, item: Item) -> dict[str, pa.Table]:
        check_square(item, self.name)
        maps = item.maps
        layers, rows = maps.layers_of("ATTN-N"), RowParts()
        allowed = maps.allowed[are_among(maps.layers, layers)]
        both = maps.heads["ATTN-W"], maps.heads["ATTN-N"]
        for layer, pairs, *values in zip(layers, allowed, *both, strict=True):
            weights, norms = (each[:, pairs] for each in values)
            rho = spearman_matrix(np.stack([weights, norms], axis=1))[:, 0, 1]
            mean = norms.mean(-1, dtype=np.float64)
            rows.add(layer=layer, head=np.arange(len(rho)), rho=rho, norm=mean)
        return {"heads": self.build("heads", {**whose(item), **rows.columns()})}


# Rows of the mixing ratio: how much of a token's vector comes from other tokens.


class Mixing(TableMeasure):
    """``‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖)`` of every token, scope and layer.

    Kobayashi et al. 2021, section 4; categories of tokens as in `tokens.categories`.
    """

    name = "mixing"
    declared: Mapping[str, Table] = {
        "mixing": Table(
            schema_of(
                *WHOSE, STACK, layer=INT, scope=TEXT, position=INT, token_id=INT, category=TEXT,
                ratio=REAL,
            ),
            ("index", "stack", "layer", "scope", "position"),
        )
    }  # fmt: skip

    def of_stack(self, item: Item) -> dict[str, pa.Table]:
        maps = item.maps
        scopes = [scope for scope in maps.scopes if scope in maps.mixing]
        if not scopes:
            return {"mixing": self.build("mixing", {})}
        columns = {  # (layer, scope, position)
            **whose(item),
            "layer": np.array(maps.layers)[:, None, None],
            "scope": np.arange(len(scopes))[:, None],
            "position": np.arange(len(item)),
            "token_id": item.encoded.ids,
            "category": categories(item),
            "ratio": np.stack([maps.over_layers("mixing", scope) for scope in scopes], axis=1),
        }
        here = [are_among(maps.layers, maps.covered("mixing", scope)) for scope in scopes]
        labels = {"scope": scopes, "category": CATEGORIES}
        return {"mixing": self.build("mixing", columns, labels, np.array(here).T[..., None])}


# Rows about the feed-forward block's vectors, what bypasses it, and its special dimensions.


class Norms(TableMeasure):
    """Mean ‖FF(x′)‖ and ‖x′‖, mean |value| per dimension, and ρ without special dimensions.

    Kobayashi et al. 2024, section 6. Means per sequence are over its tokens; sums per dimension
    are over all tokens, so that ``sum / count`` is the mean of the corpus. ``rho_with`` is
    Spearman's ρ between the map before the block and the block's map, ``rho_without`` the same
    with the special dimensions (lowest γ behind the block) taken out of the block's output.
    Layers without a norm behind the block have null γ and no rows in special_dimensions.
    """

    name = "norms"
    declared: Mapping[str, Table] = {
        "norms": Table(
            schema_of(*WHOSE, STACK, layer=INT, ff_output_norm=REAL, bypassed_norm=REAL),
            ("index", "stack", "layer"),
        ),
        # γ and whether a dimension is special belong to the model, not to a sequence; `count` are
        # tokens.
        "norms_dimensions": Table(
            schema_of(
                STACK, layer=INT, dimension=INT, sequences=LONG, count=LONG, sum_input_abs=EXACT,
                sum_output_abs=EXACT, gamma=REAL, special=FLAG,
            ),
            ("stack", "layer", "dimension"),
            {
                "sequences": count("sequences"), "count": count(),
                "sum_input_abs": total("sum_input_abs"),
                "sum_output_abs": total("sum_output_abs"),
            },
        ),
        "special_dimensions": Table(
            schema_of(*WHOSE, STACK, layer=INT, rho_with=REAL, rho_without=REAL),
            ("index", "stack", "layer"),
        ),
    }  # fmt: skip
    needs = Needs(statistics=True)

    def of_stack(self, item: Item) -> dict[str, pa.Table]:
        tables = {name: self.build(name, {}) for name in self.declared}
        statistics = item.maps.statistics
        if "ff_output_norm" in statistics:
            tables["norms"] = self._norms(item)
        if "ff_output_mean_abs" in statistics:
            tables["norms_dimensions"] = self._dimensions(item)
        if "ff_without_special" in statistics:
            tables["special_dimensions"] = self._special(item)
        return tables

    def _norms(self, item: Item) -> pa.Table:
        maps, means = item.maps, dict[str, Any]()
        for name in ("ff_output_norm", "bypassed_norm"):
            means[name] = np.nan
            if name in maps.statistics:
                values = maps.over_layers("statistics", name)
                means[name] = values.mean(axis=1, dtype=np.float64)
        columns = {**whose(item), "layer": maps.layers, **means}
        return self.build("norms", columns, here=_with_statistic(maps, "ff_output_norm"))

    def _dimensions(self, item: Item) -> pa.Table:
        maps, n = item.maps, len(item)
        sizes = {
            f"sum_{side}_abs": n
            * maps.over_layers("statistics", f"ff_{side}_mean_abs").astype(float)
            for side in ("input", "output")
        }
        layers, width = sizes["sum_output_abs"].shape
        gamma, special = np.full((layers, width), np.nan), np.zeros((layers, width), dtype=bool)
        if "gamma" in maps.statistics:  # of the layers that have a norm behind the block
            gamma = maps.over_layers("statistics", "gamma")
            (places,) = np.nonzero(_with_statistic(maps, "gamma"))
            special[places[:, None], maps.statistics["special_dimensions"]] = True
        columns = {
            **whose(item),
            "layer": np.array(maps.layers)[:, None],
            "dimension": np.arange(width),
            "sequences": 1,
            "count": n,
            "gamma": gamma,
            "special": special,
        }
        here = _with_statistic(maps, "ff_output_mean_abs")[:, None]
        return self.build("norms_dimensions", columns | sizes, here=here)

    def _special(self, item: Item) -> pa.Table:
        maps = item.maps
        ordinary = maps.over_layers("statistics", "ff_without_special")
        normed = _with_statistic(maps, "ff_without_special")
        here, rho = np.zeros(len(normed), dtype=bool), np.full((len(normed), 2), np.nan)
        for pair in feed_forward_pairs(maps.scopes):
            for group in alike(maps, *pair):
                group = group[normed[group]]
                if len(group):
                    allowed = maps.allowed[group[0]]
                    compared = [*(at_layers(maps, scope, group) for scope in pair), ordinary[group]]
                    of_pairs = np.stack([each[:, allowed] for each in compared], axis=1)
                    rho[group], here[group] = spearman_matrix(of_pairs)[:, 0, 1:], True
        columns = {
            **whose(item),
            "layer": maps.layers,
            "rho_with": rho[:, 0],
            "rho_without": rho[:, 1],
        }
        return self.build("special_dimensions", columns, here=here)


def _with_statistic(maps: Maps, name: str) -> NDArray[np.bool_]:
    """Which layers have a statistic."""
    return are_among(maps.layers, maps.covered("statistics", name))


# Rows of explanations: which tokens made the model say this, over a corpus.


#: where the score is read; null for a classifier that pools its tokens
_READ_AT = pa.field("read_at", INT)
_ALL = "all"
#: What both sequences supply of the score, as in `Explanation.shares`.
_SHARES = ("source", "prefix", "source_share", "source_share_absolute")


class ExplanationsMeasure(TableMeasure):
    """What each token, component and bias contributes to a score of every sequence.

    `target`, `contrast`, `position` and `first_piece` as in `Lens.explain`: by default what the
    model says, at the last position of a causal model and at the mask of a masked one. Of an
    encoder–decoder, `position` is a place in its target, by default each in turn: `explanations`
    has a row for each token that is explained, with what the tokens of the source and of the prefix
    before it supply. Positions count in each sequence ("source", or "prefix" of the target), layers
    in each stack.
    """

    name = "explanations"
    declared: Mapping[str, Table] = {
        "explanations": Table(
            schema_of(
                *WHOSE, _READ_AT, target_id=INT, target=TEXT, contrast_id=INT, contrast=TEXT,
                value=REAL, probability=REAL,
                remainder=REAL,  # what no token owns
                completeness=REAL,
                **dict.fromkeys(_SHARES, REAL),
            ),
            ("index", "read_at"),
        ),
        "explanation_tokens": Table(
            schema_of(
                *WHOSE, pa.field("part", LABEL), _READ_AT, position=INT, token_id=INT, token=LABEL,
                contribution=REAL,
            ),
            ("index", "read_at", "part", "position"),
        ),
        # The head is of an attention, null elsewhere. The value is over all positions.
        "explanation_components": Table(
            schema_of(*WHOSE, STACK, _READ_AT, layer=INT, component=LABEL, head=INT, value=REAL),
            ("index", "read_at", "stack", "layer", "component", "head"),
        ),
        # A null layer: what stands behind the last.
        "explanation_bias": Table(
            schema_of(*WHOSE, STACK, _READ_AT, layer=INT, component=LABEL, value=REAL),
            ("index", "read_at", "stack", "layer", "component"),
        ),
    }  # fmt: skip
    of_pairs = ("stack", "part", *_SHARES)

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
        if isinstance(position, str) and position != _ALL:
            raise InputError(f"explanations.position is a number or 'all', not {position!r}")
        ExplainOptions(nonlinearity=nonlinearity, first_piece=first_piece)
        self.asked = Asked(target, contrast, position, bool(first_piece), nonlinearity)

    def for_two_stacks(self) -> Measure:
        require(
            self.asked.target is None,
            "the target of an encoder–decoder is the text beside its source; leave "
            "explanations.target out and choose the token by explanations.position",
        )
        require(
            self.asked.contrast is None or self.asked.position not in (None, _ALL),
            "explanations.contrast is compared with one token of each target; choose it by "
            "explanations.position, such as -1",
        )
        return super().for_two_stacks()

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        asked = self.asked
        if self.two_stacks and asked.position is None:
            asked = replace(asked, position=_ALL)
        return Needs(scopes=(), arrays=False, asked=asked)

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self.asked).items() if value is not None}

    def parts(self, item: Item) -> Iterator[dict[str, pa.Table]]:
        """The rows of each explanation; a table takes of its columns those that it has."""
        for why in item.explanations:
            read_at = np.nan if why.position is None else why.position
            others = (name for _, name, _ in why.biases)
            labels: dict[str, Sequence[str]] = {
                "part": [part.name for part in why.sequences],
                "token": why.tokens,
                "component": list(dict.fromkeys([*why.component_names, *others])),
            }
            own = {**whose(item), "read_at": read_at}
            names = [name for name in self.tables["explanations"].names if name not in own]
            columns = {
                "explanations": {
                    name: getattr(why.shares if name in _SHARES else why, name) for name in names
                },
                "explanation_tokens": _token_columns(why),
                "explanation_components": _component_columns(why),
                "explanation_bias": _bias_columns(why, labels["component"]),
            }
            yield {
                name: self.build(name, own | of_table, labels) for name, of_table in columns.items()
            }


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
    rows = RowParts()
    heads = {"ATTN": why.heads, "CROSS": why.cross_heads}
    sums = why.components.sum(-1)  # (layer, component), NaN where a layer lacks it
    for place, name in enumerate(why.component_names):
        of_heads = heads.get(name)
        values = sums[:, [place]] if of_heads is None else of_heads.sum(-1, dtype=np.float64)
        layer, head = np.nonzero(~np.isnan(values))
        number = np.nan if of_heads is None else head.astype(float)
        rows.add(layer=layer, component=place, head=number, value=values[layer, head])
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
