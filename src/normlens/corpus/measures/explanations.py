"""Rows of explanations: which tokens made the model say this, over a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures.base import (
    LABEL,
    WHOSE,
    Asked,
    Blocks,
    Item,
    Needs,
    RowMeasure,
    build,
)
from normlens.corpus.measures.rows import STACK, with_column
from normlens.errors import InputError
from normlens.options import ExplainOptions
from normlens.results.explanation import Explanation
from normlens.results.words import DECODER, ENCODER

# The tables of explanations, and the rows of one explanation in each.


#: where the score is read; null for a classifier that pools its tokens
_READ_AT = pa.field("read_at", pa.int32())
SCORES = pa.schema(
    [
        *WHOSE,
        _READ_AT,
        pa.field("target_id", pa.int32()),
        pa.field("target", pa.string()),
        pa.field("contrast_id", pa.int32()),
        pa.field("contrast", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("probability", pa.float64()),
        pa.field("remainder", pa.float64()),  # what no token owns
        pa.field("completeness", pa.float64()),
    ]
)
TOKENS = pa.schema(
    [
        *WHOSE,
        _READ_AT,
        pa.field("position", pa.int32()),
        pa.field("token_id", pa.int32()),
        pa.field("token", LABEL),
        pa.field("contribution", pa.float64()),
    ]
)
COMPONENTS = pa.schema(
    [
        *WHOSE,
        _READ_AT,
        pa.field("layer", pa.int32()),  # from 0
        pa.field("component", LABEL),
        pa.field("head", pa.int32()),  # of an attention; null: the component has none
        pa.field("value", pa.float64()),  # over all positions
    ]
)
BIAS = pa.schema(
    [
        *WHOSE,
        _READ_AT,
        pa.field("layer", pa.int32()),  # null: what stands behind the last
        pa.field("component", LABEL),
        pa.field("value", pa.float64()),
    ]
)
TABLES = {
    "explanations": SCORES,
    "explanation_tokens": TOKENS,
    "explanation_components": COMPONENTS,
    "explanation_bias": BIAS,
}
ORDER = {
    "explanations": ("index", "read_at"),
    "explanation_tokens": ("index", "read_at", "position"),
    "explanation_components": ("index", "read_at", "layer", "component", "head"),
    "explanation_bias": ("index", "read_at", "layer", "component"),
}


def rows_of(index: int, sequence: str, why: Explanation) -> dict[str, pa.Table]:
    """The rows of one explanation of a sequence."""
    read_at = float("nan") if why.position is None else why.position
    whose = {"index": index, "sequence": sequence, "read_at": read_at}
    return {
        "explanations": pa.Table.from_pylist([score_row(whose, why)], schema=SCORES),
        "explanation_tokens": _tokens(whose, why),
        "explanation_components": _components(whose, why),
        "explanation_bias": _bias(whose, why),
    }


def score_row(whose: dict[str, Any], why: Explanation) -> dict[str, Any]:
    """The fields of `SCORES`."""
    others = [field.name for field in SCORES if field.name not in whose]
    return {**whose, **{name: getattr(why, name) for name in others}, "read_at": why.position}


def _tokens(whose: dict[str, Any], why: Explanation) -> pa.Table:
    places = np.arange(len(why.raw_tokens))
    columns = {
        **whose,
        "position": places,
        "token_id": why.token_ids,
        "token": places,
        "contribution": why.contributions,
    }
    return build(TOKENS, columns, {"token": why.tokens})


def _components(whose: dict[str, Any], why: Explanation) -> pa.Table:
    columns = {**whose, **component_columns(why)}
    return build(COMPONENTS, columns, {"component": why.component_names})


def component_columns(why: Explanation) -> dict[str, Any]:
    """Layer, component, head and value of each row.

    Attentions have a row per head and none as a whole, so that no sum of rows of a layer counts
    anything twice. What a layer lacks has no row.
    """
    names, rows = why.component_names, Blocks()
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
    return rows.columns()


def _bias(whose: dict[str, Any], why: Explanation) -> pa.Table:
    if not why.biases:
        return BIAS.empty_table()
    names = list(dict.fromkeys(name for _, name, _ in why.biases))
    columns = {
        **whose,
        "layer": np.array([np.nan if isinstance(at, str) else at for at, *_ in why.biases]),
        "component": [names.index(name) for _, name, _ in why.biases],
        "value": [share for *_, share in why.biases],
    }
    return build(BIAS, columns, {"component": names})


# Rows of explanations: which tokens made the model say this, over a corpus.


class ExplanationsMeasure(RowMeasure):
    """What each token, component and bias contributes to a score of every sequence.

    `target`, `contrast`, `position` and `first_piece` as in `Lens.explain`: by default what the
    model says, at the last position of a causal model and at the mask of a masked one. Of an
    encoder–decoder, `position` is a place in its target, by default each in turn.
    """

    name = "explanations"
    tables: Mapping[str, pa.Schema] = TABLES
    order: Mapping[str, tuple[str, ...]] = ORDER

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
        self.asked = Asked(target, contrast, position, bool(first_piece), nonlinearity)

    def for_two_stacks(self) -> PairExplanations:
        return PairExplanations(self.asked)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, asked=self.asked)

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self.asked).items() if value is not None}

    def rows(self, item: Item) -> dict[str, pa.Table]:
        tables = [rows_of(item.index, item.sequence, why) for why in item.explanations]
        return {
            name: pa.concat_tables([schema.empty_table(), *(made[name] for made in tables)])
            for name, schema in self.tables.items()
        }


# Rows of explanations of an encoder–decoder: what source and prefix supply of each token.


#: What both sequences supply of the score, as in `Explanation.shares`.
SHARES = [
    pa.field(name, pa.float64())
    for name in ("source", "prefix", "source_share", "source_share_absolute")
]
#: The sequence of a token: "source", or "prefix" of the target.
PART = pa.field("part", LABEL)
_STACKS = (ENCODER, DECODER)
_ALL = "all"


class PairExplanations(RowMeasure):
    """What each token of source and prefix contributes to the tokens of every target.

    `explanations` has a row for each token that is explained: its logit, what the tokens of the
    source and of the prefix before it supply together, and their shares. Positions count in each
    sequence, layers in each stack.
    """

    name = "explanations"
    tables: Mapping[str, pa.Schema] = {
        "explanations": pa.schema([*SCORES, *SHARES]),
        "explanation_tokens": with_column(TOKENS, PART),
        "explanation_components": with_column(COMPONENTS, STACK),
        "explanation_bias": with_column(BIAS, STACK),
    }
    order: Mapping[str, tuple[str, ...]] = {
        **ORDER,
        "explanation_tokens": ("index", "read_at", "part", "position"),
        "explanation_components": ("index", "read_at", "stack", "layer", "component", "head"),
        "explanation_bias": ("index", "read_at", "stack", "layer", "component"),
    }

    def __init__(self, asked: Asked):
        if asked.target is not None:
            raise InputError(
                "the target of an encoder–decoder is the text beside its source; leave "
                "explanations.target out and choose the token by explanations.position"
            )
        if asked.contrast is not None and asked.position in (None, _ALL):
            raise InputError(
                "explanations.contrast is compared with one token of each target; choose it by "
                "explanations.position, such as -1"
            )
        self.given = asked
        position = _ALL if asked.position is None else asked.position
        self.asked = replace(asked, position=position)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, asked=self.asked)

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self.given).items() if value is not None}

    def rows(self, item: Item) -> dict[str, pa.Table]:
        made = [_rows(item, why) for why in item.explanations]
        return {
            name: pa.concat_tables([schema.empty_table(), *(rows[name] for rows in made)])
            for name, schema in self.tables.items()
        }


def _rows(item: Item, why: Explanation) -> dict[str, pa.Table]:
    whose = {"index": item.index, "sequence": item.sequence, "read_at": why.position}
    score = {**score_row(whose, why), **asdict(why.shares)}
    schemas = PairExplanations.tables
    return {
        "explanations": pa.Table.from_pylist([score], schema=schemas["explanations"]),
        "explanation_tokens": _pair_tokens(schemas["explanation_tokens"], whose, why),
        "explanation_components": _pair_components(schemas["explanation_components"], whose, why),
        "explanation_bias": _pair_bias(schemas["explanation_bias"], whose, why),
    }


def _pair_tokens(schema: pa.Schema, whose: dict[str, Any], why: Explanation) -> pa.Table:
    """The tokens of the source, and those of the target that had been read."""
    rows = Blocks()
    for place, part in enumerate(why.sequences):
        positions = np.arange(len(part))
        rows.add(part=place, position=positions, contribution=part.contributions)
    ids = (why.token_ids or [])[: why.seen]
    columns = {**rows.columns(), "token_id": ids, "token": np.arange(why.seen)}
    labels = {"part": [part.name for part in why.sequences], "token": why.tokens}
    return build(schema, {**whose, **columns}, labels)


def _pair_components(schema: pa.Schema, whose: dict[str, Any], why: Explanation) -> pa.Table:
    columns = component_columns(why)
    columns |= _in_stacks(columns["layer"], why)
    labels = {"component": why.component_names, "stack": _STACKS}
    return build(schema, {**whose, **columns}, labels)


def _pair_bias(schema: pa.Schema, whose: dict[str, Any], why: Explanation) -> pa.Table:
    if not why.biases:
        return schema.empty_table()
    names = list(dict.fromkeys(name for _, name, _ in why.biases))
    # What stands behind the last layer is the decoder's.
    layers = [np.nan if isinstance(at, str) else at for at, *_ in why.biases]
    columns = {
        "component": [names.index(name) for _, name, _ in why.biases],
        "value": [share for *_, share in why.biases],
        **_in_stacks(np.array(layers, float), why),
    }
    return build(schema, {**whose, **columns}, {"component": names, "stack": _STACKS})


def _in_stacks(layers: NDArray[Any], why: Explanation) -> dict[str, NDArray[Any]]:
    """The stack of each of an explanation's layers, and its place there."""
    inside = layers < why.encoder_layers
    places = np.where(inside, layers, layers - why.encoder_layers)
    return {"stack": np.where(inside, 0, 1), "layer": places}
