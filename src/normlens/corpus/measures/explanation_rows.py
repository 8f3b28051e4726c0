"""Rows of explanations: which tokens made the model say this, over a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from normlens.corpus.measures.base import Asked, Item, Needs, RowMeasure
from normlens.corpus.measures.columns import LABEL, WHOSE, Blocks, build
from normlens.errors import InputError
from normlens.explain_options import ExplainOptions
from normlens.results.explanation import Explanation

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
        pa.field("head", pa.int32()),  # null: the component as a whole
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


class ExplanationsMeasure(RowMeasure):
    """What each token, component and bias contributes to a score of every sequence.

    `target`, `contrast`, `position` and `first_piece` as in `Lens.explain`: by default what the
    model says, at the last position of a causal model and at the mask of a masked one.
    """

    name = "explanations"
    tables: Mapping[str, pa.Schema] = {
        "explanations": SCORES,
        "explanation_tokens": TOKENS,
        "explanation_components": COMPONENTS,
        "explanation_bias": BIAS,
    }
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
        self.asked = Asked(target, contrast, position, bool(first_piece), nonlinearity)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, asked=self.asked)

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self.asked).items() if value is not None}

    def rows(self, item: Item) -> dict[str, pa.Table]:
        tables = [self._rows(item, why) for why in item.explanations]
        return {
            name: pa.concat_tables([schema.empty_table(), *(made[name] for made in tables)])
            for name, schema in self.tables.items()
        }

    def _rows(self, item: Item, why: Explanation) -> dict[str, pa.Table]:
        whose = {
            "index": item.index,
            "sequence": item.sequence,
            "read_at": float("nan") if why.position is None else why.position,
        }
        return {
            "explanations": _score(whose, why),
            "explanation_tokens": _tokens(whose, why),
            "explanation_components": _components(whose, why),
            "explanation_bias": _bias(whose, why),
        }


def _score(whose: dict[str, Any], why: Explanation) -> pa.Table:
    own = [field.name for field in SCORES if field.name not in whose]
    row = {**whose, **{name: getattr(why, name) for name in own}, "read_at": why.position}
    return pa.Table.from_pylist([row], schema=SCORES)


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
    """Whole components, then heads; a component that a layer lacks has no row."""
    names = why.component_names
    sums = why.components.sum(-1)  # (layer, component), NaN where a layer lacks it
    heads = why.heads.sum(-1, dtype=np.float64)  # (layer, head)
    rows = Blocks()
    layer, component = np.nonzero(~np.isnan(sums))
    whole = sums[layer, component]
    rows.add(layer=layer, component=component, head=np.full(len(layer), np.nan), value=whole)
    layer, head = np.indices(heads.shape).reshape(2, -1)
    attention = names.index("ATTN")
    rows.add(layer=layer, component=attention, head=head.astype(float), value=heads.ravel())
    return build(COMPONENTS, {**whose, **rows.columns()}, {"component": names})


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
