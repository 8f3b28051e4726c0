"""Results as named arrays and texts, by their public attributes alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

import normlens

Value = np.ndarray | str
Values = dict[str, Value]

#: How the text of a refusal begins.
REFUSED = "refused: "
#: Under this name are the numbers that are parts of one score.
SCORE = "score"
#: So many rows of a table are compared.
ROWS = 400
#: What says when, where and with which versions a result was made.
_CHANGING = ("versions", "completeness", "device", "revision")


def as_json(value: Any) -> str:
    """Labels as one line of text."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def under(prefix: str, values: Values) -> Values:
    """The same with a prefix before each name."""
    return {f"{prefix}/{name}": value for name, value in values.items()}


def attempt(prefix: str, call: Callable[..., Any], /, *given: Any, **keywords: Any) -> Values:
    """What a call returns, or the line with which it is refused; a crash of today is noted, too."""
    try:
        return under(prefix, values_of(call(*given, **keywords)))
    except Exception as error:
        return {prefix: in_words(error)}


def in_words(error: Exception) -> str:
    """An error of the package as its line; any other is a crash."""
    verdict = REFUSED if isinstance(error, normlens.NormLensError) else "CRASH: "
    return f"{verdict}{type(error).__name__}: {error}"


def values_of(result: Any) -> Values:
    """Every number and label of a result; a list gives those of each."""
    for kind, take in _KINDS.items():
        if isinstance(result, kind):
            return take(result)
    raise TypeError(f"no way to compare {type(result).__name__}")


def _of_list(results: Any) -> Values:
    return {
        k: v for n, each in enumerate(results) for k, v in under(str(n), values_of(each)).items()
    }


def _of_maps(maps: normlens.Maps) -> Values:
    groups = ("arrays", "mixing", "heads", "standard_error", "statistics")
    values: Values = {
        f"{group}/{name}": np.asarray(array)
        for group in groups
        for name, array in getattr(maps, group).items()
    }
    values["allowed"] = np.asarray(maps.allowed)
    values["completeness"] = np.asarray(maps.completeness)
    labels = ("scopes", "layers", "tokens", "raw_tokens", "source_tokens", "token_ids", "special")
    labels += ("token_words", "word_labels", "text", "coverage", "origin", "stack")
    values["labels"] = as_json({name: getattr(maps, name) for name in labels})
    values["provenance"] = _provenance(maps)
    if maps.source_axis is not None:
        values["is_same_token"] = maps.is_same_token
    if maps.routing is not None:
        routing = maps.routing
        values["routing/experts"], values["routing/weights"] = routing.experts, routing.weights
        values["routing/labels"] = as_json([routing.layers, routing.count, routing.tokens])
        if routing.shared is not None:
            values["routing/shared"] = routing.shared
    if maps.grid is not None:
        values["grid"] = as_json([maps.grid.rows, maps.grid.columns, maps.grid.first])
    if maps.encoder is not None:
        values |= under("encoder", _of_maps(maps.encoder))
    return values


def _of_explanation(why: normlens.Explanation) -> Values:
    score: Values = {name: getattr(why, name) for name in ("nodes", "components", "heads")}
    score |= {f"flow/{scope}" if scope else "flow": flow for scope, flow in why.flows.items()}
    for name in (
        "head_flow",
        "cross_heads",
        "value",
        "remainder",
        "target_value",
        "contrast_value",
    ):
        if getattr(why, name) is not None:
            score[name] = np.asarray(getattr(why, name))
    score["biases"] = np.array([share for *_, share in why.biases], dtype=np.float64)
    values = under(SCORE, score)
    for name in ("completeness", "probability", "contrast_probability"):
        if getattr(why, name) is not None:
            values[name] = np.asarray(getattr(why, name))
    labels = ("task", "question", "component_names", "tokens", "token_ids", "special", "text")
    labels += ("token_words", "word_labels", "position", "layer", "target", "target_id")
    labels += ("contrast", "contrast_id", "layer_names", "encoder_tokens", "encoder_layers")
    known = {name: getattr(why, name) for name in labels}
    values["labels"] = as_json({**known, "biases": [[*names] for *names, _ in why.biases]})
    values["provenance"] = _provenance(why)
    if why.has_two_sequences:
        values |= {f"shares/{k}": np.asarray(v) for k, v in asdict(why.shares).items()}
    return values


def _of_cosine(cosine: normlens.Cosine) -> Values:
    names = ("value", "matrix", "a_with_bias", "b_with_bias", "bias")
    values = under(SCORE, {name: np.asarray(getattr(cosine, name)) for name in names})
    values["completeness"] = np.asarray(cosine.completeness)
    labels = ("tokens_a", "tokens_b", "text_a", "text_b", "note")
    values["labels"] = as_json({name: getattr(cosine, name) for name in labels})
    values["provenance"] = _provenance(cosine)
    return values


def _of_table(table: pd.DataFrame) -> Values:
    """The columns; of a long table some rows, and the sums of all."""
    kinds = [f"{name}: {kind}" for name, kind in table.dtypes.items()]
    values: Values = {"columns": as_json([f"{len(table)} rows", *kinds])}
    for name, column in table.items():
        is_number = isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb"
        some = column.iloc[:: len(table) // ROWS + 1]
        values[f"{name}"] = some.to_numpy() if is_number else as_json(some.tolist())
        if is_number and len(some) < len(column):
            values[f"sum of {name}"] = np.asarray(column.sum())
    return values


def _provenance(result: Any) -> str:
    return as_json({k: v for k, v in result.provenance.items() if k not in _CHANGING})


_KINDS: dict[type, Callable[[Any], Values]] = {
    normlens.Maps: _of_maps,
    normlens.Explanation: _of_explanation,
    normlens.Explanations: _of_list,
    normlens.Cosine: _of_cosine,
    pd.DataFrame: _of_table,
    list: _of_list,
    np.ndarray: lambda array: {"array": array},
    str: lambda text: {"text": text},
}
