"""What a file of explanations may hold: the type of every field and the shape of every array.

A file may come from anywhere; the first thing that is wrong is raised as a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.results.axes import EXPLANATION, fits
from normlens.results.header_fields import (
    AXIS,
    Fields,
    is_index,
    is_list,
    is_pair_or_text,
    is_provenance,
    is_text,
    misfit,
)
from normlens.scopes import components_of

FLOW = "flow"
_FLOATS = ("float32", "float64")
ALWAYS = ("nodes", "components", "heads")
CROSS_HEADS = "cross_heads"  # of an encoder–decoder's
#: How far a file's numbers may miss their sum beside the completeness that it states.
_ROUNDING = 1e-6


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_bias(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and (value[0] == "head" or is_index(value[0]))
        and is_text(value[1])
        and _is_number(value[2])
    )


def _is_scope(value: Any) -> bool:
    return is_text(value) and value == value.strip().upper() and bool(components_of(value))


def _is_note(value: Any) -> bool:
    return is_provenance(value) and isinstance(value.get("note", ""), str)


def _are_different(value: Any) -> bool:
    return is_list(value, is_text) and len(set(value)) == len(value)


_NUMBER_OR_NULL = (lambda value: value is None or _is_number(value), "a number or null")
_TEXT_OR_NULL = (lambda value: value is None or is_text(value), "a text or null")
_INDEX_OR_NULL = (lambda value: value is None or is_index(value), "an index or null")
_SHARE_OR_NULL = (
    lambda value: value is None or (_is_number(value) and 0 <= value <= 1 + _ROUNDING),
    "a probability or null",
)
#: What explanations of one text share.
SHARED: Fields = {
    **AXIS,
    "text": (is_pair_or_text, "a text, a pair of texts or null"),
    "task": (is_text, "a text"),
    "component_names": (_are_different, "a list of different texts"),
    "scopes": (
        lambda value: is_list(value, _is_scope) and len(set(value)) == len(value),
        "a list of different scopes",
    ),
}
#: What explanations of an encoder–decoder share beside that.
OF_TWO: Fields = {
    "encoder_tokens": (is_index, "a number of tokens"),
    "encoder_layers": (is_index, "a number of layers"),
}
#: What each of them says for itself.
EACH: Fields = {
    "value": (_is_number, "a number"),
    "completeness": (lambda value: _is_number(value) and value >= 0, "a number from 0"),
    "provenance": (_is_note, "an object that says how the explanation was made"),
    "biases": (lambda value: is_list(value, _is_bias), "a list of layers, components and numbers"),
    "position": _INDEX_OR_NULL,
    "layer": _INDEX_OR_NULL,
    "target": _TEXT_OR_NULL,
    "target_id": _INDEX_OR_NULL,
    "target_value": _NUMBER_OR_NULL,
    "probability": _SHARE_OR_NULL,
    "contrast": _TEXT_OR_NULL,
    "contrast_id": _INDEX_OR_NULL,
    "contrast_value": _NUMBER_OR_NULL,
    "contrast_probability": _SHARE_OR_NULL,
}


def check_fields(meta: Any, fields: Fields) -> None:
    """Raise a ValueError unless a part of the header has these fields."""
    if not isinstance(meta, dict):
        raise ValueError("its header is no JSON object")
    for name in fields:
        if name not in meta:
            raise ValueError(f"{name!r} is missing")
    for name in meta:
        if name not in fields:
            raise ValueError(f"{name!r} is no field of an explanation")
    if wrong := misfit(meta, fields):
        raise ValueError(wrong)


def check_arrays(arrays: Mapping[str, NDArray[Any]], shared: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the arrays are those that the checked fields announce."""
    scopes = {f"{FLOW}/{scope}" for scope in shared["scopes"]}
    two = {CROSS_HEADS} if "encoder_tokens" in shared else set()
    if missing := {*ALWAYS, *scopes, *two} - set(arrays):
        raise ValueError(f"the array {min(missing)!r} is missing")
    if not two and CROSS_HEADS in arrays:
        raise ValueError(f"{CROSS_HEADS!r} is no array of an explanation of one sequence")
    n = len(shared["tokens"])
    sizes = {"target": n, "source": n, "component": len(shared["component_names"])}
    if arrays["nodes"].ndim == 2:
        sizes["layer"] = len(arrays["nodes"])
    for name, array in arrays.items():
        if name not in EXPLANATION and name not in scopes:
            raise ValueError(f"{name!r} is no array of an explanation with these scopes")
        if str(array.dtype) not in _FLOATS:
            raise ValueError(f"{name!r} holds {array.dtype} values")
        axes = EXPLANATION[FLOW if name in scopes else name]
        if not fits(array.shape, axes, sizes) or 0 in array.shape:
            raise ValueError(f"{name!r} has shape {array.shape} for {n} tokens")
    if two:
        for name, count in (("encoder_tokens", n), ("encoder_layers", len(arrays["nodes"]))):
            if not 0 < shared[name] < count:
                raise ValueError(f"{name!r} is {shared[name]} of {count}")
    if not np.isfinite(arrays["nodes"]).all():
        raise ValueError("'nodes' holds numbers that are not finite")


def check_sum(fields: Mapping[str, Any], nodes: NDArray[Any], biases: list[float]) -> None:
    """Raise a ValueError unless contributions and biases make the score that the file states."""
    value = fields["value"]
    scores = [abs(fields[name] or 0.0) for name in ("target_value", "contrast_value")]
    scale = max(abs(value), *scores, *map(abs, biases), float(np.abs(nodes).max()))
    total = float(nodes[0].sum(dtype=np.float64)) + sum(biases)
    if abs(total - value) > 2 * (fields["completeness"] + _ROUNDING) * scale:
        raise ValueError(f"its contributions and biases sum to {total:.6g}, not to {value:.6g}")
