"""The tables of explanations, and the rows of one explanation in each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from normlens.corpus.measures.columns import LABEL, WHOSE, Blocks, build
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
