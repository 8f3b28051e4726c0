"""Rows of explanations of an encoder–decoder: what source and prefix supply of each token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures.base import Asked, Item, Needs, RowMeasure
from normlens.corpus.measures.both_stacks import STACK, with_column
from normlens.corpus.measures.columns import LABEL, Blocks, build
from normlens.corpus.measures.explanation_tables import (
    BIAS,
    COMPONENTS,
    ORDER,
    SCORES,
    TOKENS,
    component_columns,
    score_row,
)
from normlens.errors import InputError
from normlens.results.explanation import Explanation
from normlens.results.words import DECODER, ENCODER

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
        "explanation_tokens": _tokens(schemas["explanation_tokens"], whose, why),
        "explanation_components": _components(schemas["explanation_components"], whose, why),
        "explanation_bias": _bias(schemas["explanation_bias"], whose, why),
    }


def _tokens(schema: pa.Schema, whose: dict[str, Any], why: Explanation) -> pa.Table:
    """The tokens of the source, and those of the target that had been read."""
    rows = Blocks()
    for place, part in enumerate(why.sequences):
        positions = np.arange(len(part))
        rows.add(part=place, position=positions, contribution=part.contributions)
    ids = (why.token_ids or [])[: why.seen]
    columns = {**rows.columns(), "token_id": ids, "token": np.arange(why.seen)}
    labels = {"part": [part.name for part in why.sequences], "token": why.tokens}
    return build(schema, {**whose, **columns}, labels)


def _components(schema: pa.Schema, whose: dict[str, Any], why: Explanation) -> pa.Table:
    columns = component_columns(why)
    columns |= _in_stacks(columns["layer"], why)
    labels = {"component": why.component_names, "stack": _STACKS}
    return build(schema, {**whose, **columns}, labels)


def _bias(schema: pa.Schema, whose: dict[str, Any], why: Explanation) -> pa.Table:
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
