"""Explanations on disk: one safetensors file, everything but the arrays as JSON in its header.

What explanations of one text share is written once. `normlens.results.explanation_header` judges
what is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.json_text import parse_json
from normlens.results import patches_file
from normlens.results.explanation_header import (
    ALWAYS,
    CROSS_HEADS,
    EACH,
    FLOW,
    OF_TWO,
    SHARED,
    check_arrays,
    check_fields,
    check_sum,
)
from normlens.results.header_fields import Fields, check_axis

if TYPE_CHECKING:
    from normlens.results.explanation import Explanation

ONE = "normlens-explanation"  # the format of a file with one explanation
SEVERAL = "normlens-explanations"  # and of one with those of each next token
FORMAT_VERSION = 1
_META = "explanation"  # where the header holds the fields

Saved = tuple[dict[str, NDArray[Any]], dict[str, str]]


# Writing -----------------------------------------------------------------------------------------


def saved(explanation: Explanation) -> Saved:
    """The arrays and the header of the file of one explanation."""
    meta = {"shared": _shared(explanation), "each": [_each(explanation)]}
    picture = patches_file.saved_picture(explanation.grid)
    return _arrays(explanation, "") | picture, _header(ONE, meta)


def saved_several(explanations: Sequence[Explanation]) -> Saved:
    """The arrays and the header of the file of explanations of one text."""
    shared = _shared(explanations[0])
    tensors: dict[str, NDArray[Any]] = {}
    for place, explanation in enumerate(explanations):
        if _shared(explanation) != shared:
            raise InputError(
                "these explanations are not of one text, so one file cannot hold them; save each"
            )
        tensors |= _arrays(explanation, f"{place}/")
    return tensors, _header(SEVERAL, {"shared": shared, "each": [*map(_each, explanations)]})


def _header(kind: str, meta: dict[str, Any]) -> dict[str, str]:
    version = str(FORMAT_VERSION)
    return {"format": kind, "version": version, _META: json.dumps(meta, ensure_ascii=False)}


def _shared(explanation: Explanation) -> dict[str, Any]:
    names = [name for name in SHARED if name not in ("tokens", "scopes")]
    fields = {name: getattr(explanation, name) for name in names}
    fields["text"] = list(fields["text"]) if isinstance(fields["text"], tuple) else fields["text"]
    scopes = [scope for scope in explanation.flows if scope]
    if explanation.has_two_sequences:
        fields |= {name: getattr(explanation, name) for name in OF_TWO}
    fields |= patches_file.saved_grid(explanation.grid)
    return {"tokens": explanation.raw_tokens, "scopes": scopes, **fields}


def _each(explanation: Explanation) -> dict[str, Any]:
    return {name: getattr(explanation, name) for name in EACH}


def _arrays(explanation: Explanation, prefix: str) -> dict[str, NDArray[Any]]:
    arrays = {name: getattr(explanation, name) for name in ALWAYS}
    for scope, flow in explanation.flows.items():
        arrays[f"{FLOW}/{scope}" if scope else FLOW] = flow
    if explanation.head_flow is not None:
        arrays["head_flow"] = explanation.head_flow
    if explanation.cross_heads is not None:
        arrays[CROSS_HEADS] = explanation.cross_heads
    return {prefix + name: np.ascontiguousarray(array) for name, array in arrays.items()}


# Reading -----------------------------------------------------------------------------------------


def parts_of(
    header: Mapping[str, str], tensors: Mapping[str, NDArray[Any]]
) -> list[dict[str, Any]]:
    """The fields of each `Explanation` in a file."""
    meta = parse_json(header[_META])
    if not isinstance(meta, dict) or set(meta) != {"shared", "each"}:
        raise ValueError("its header is not that of an explanation")
    shared, each = meta["shared"], meta["each"]
    several = header["format"] == SEVERAL
    if not isinstance(each, list) or not each or (len(each) > 1 and not several):
        raise ValueError("'each' is not a list of explanations")
    check_fields(shared, fields_of(shared))
    check_axis(shared)
    patches_file.check_grid(shared, tensors)
    labels = {**_labels(shared), "grid": patches_file.read_grid(shared, tensors)}
    arrays: list[dict[str, NDArray[Any]]] = [{} for _ in each]
    for key, array in tensors.items():
        if key == patches_file.PICTURE:
            continue
        place, _, name = key.partition("/") if several else ("0", "", key)
        if not (place.isdecimal() and place.isascii() and int(place) < len(each)):
            raise ValueError(f"{key!r} is no array of this file")
        arrays[int(place)][name] = array
    return [
        _explanation(fields, own, shared, labels) for fields, own in zip(each, arrays, strict=True)
    ]


def fields_of(shared: Any) -> Fields:
    """The fields that explanations share: of two sequences, or of a picture, some more."""
    has = set(shared) if isinstance(shared, dict) else set()
    of_two = OF_TWO if has & set(OF_TWO) else {}
    of_picture = patches_file.FIELD if patches_file.GRID in has else {}
    return {**SHARED, **of_two, **of_picture}


def _labels(shared: Mapping[str, Any]) -> dict[str, Any]:
    """The shared fields as explanations call them."""
    labels = {name: value for name, value in shared.items() if name not in ("tokens", "scopes")}
    labels["raw_tokens"] = shared["tokens"]
    if isinstance(shared["text"], list):
        labels["text"] = tuple(shared["text"])
    return labels


def _explanation(
    fields: Any, arrays: dict[str, NDArray[Any]], shared: Mapping[str, Any], labels: dict[str, Any]
) -> dict[str, Any]:
    check_fields(fields, EACH)
    check_arrays(arrays, shared)
    layers, n = arrays["nodes"].shape
    n -= shared.get("encoder_tokens", 0)  # a position is one of the target's
    for name, count in (("position", n), ("layer", layers)):
        if fields[name] is not None and fields[name] >= count:
            raise ValueError(f"{name!r} is {fields[name]} of {count}")
    biases = [tuple(bias) for bias in fields["biases"]]
    if any(layer != "head" and layer >= layers for layer, *_ in biases):
        raise ValueError(f"'biases' names a layer beyond the {layers} of the file")
    check_sum(fields, arrays["nodes"], [share for *_, share in biases])
    flows = {scope: arrays.pop(f"{FLOW}/{scope}") for scope in shared["scopes"]}
    if FLOW in arrays:
        flows = {"": arrays.pop(FLOW), **flows}
    return {**labels, **fields, **arrays, "biases": biases, "flows": flows}
