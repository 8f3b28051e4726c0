"""Cosines on disk: one safetensors file, everything but the arrays as JSON in its header."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.json_text import parse_json
from normlens.results.header_fields import check_axis_fields
from normlens.results.maps_header import FIELDS

if TYPE_CHECKING:
    from normlens.results.cosine import Cosine

FORMAT = "normlens-cosine"
FORMAT_VERSION = 1
ARRAYS = ("matrix", "a_with_bias", "b_with_bias")
NUMBERS = ("value", "bias", "completeness")
TEXTS = ("text_a", "text_b")


def saved(cosine: Cosine) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the header of a cosine's file."""
    tensors = {name: np.ascontiguousarray(getattr(cosine, name)) for name in ARRAYS}
    meta = {name: getattr(cosine, name) for name in (*NUMBERS, *TEXTS, "provenance")}
    for name in ("a", "b"):
        axis = asdict(getattr(cosine, name))
        meta[name] = {"tokens": axis.pop("raw_tokens"), **axis}
    return tensors, {
        "format": FORMAT,
        "kind": "cosine",
        "version": str(FORMAT_VERSION),
        "cosine": json.dumps(meta, ensure_ascii=False),
    }


def parts_of(
    header: Mapping[str, str], tensors: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The fields of a saved cosine, and those of its axes; a ValueError where they do not fit."""
    meta = parse_json(header["cosine"])
    if not isinstance(meta, dict) or set(meta) != {*NUMBERS, *TEXTS, "provenance", "a", "b"}:
        raise ValueError("its header does not have the fields of a cosine")
    for name in NUMBERS:
        if type(meta[name]) not in (int, float) or not math.isfinite(meta[name]):
            raise ValueError(f"{name!r} is not a number")
    fits, what = FIELDS["provenance"]
    if not fits(meta["provenance"]):
        raise ValueError(f"'provenance' is not {what}")
    if not all(meta[name] is None or isinstance(meta[name], str) for name in TEXTS):
        raise ValueError("its texts are not texts")
    axes = {name: meta.pop(name) for name in ("a", "b")}
    for axis in axes.values():
        check_axis_fields(axis)
    sizes = tuple(len(axes[name]["tokens"]) for name in ("a", "b"))
    shapes = dict(zip(ARRAYS, (sizes, sizes[:1], sizes[1:]), strict=True))
    for name, shape in shapes.items():
        if tensors[name].shape != shape or tensors[name].dtype != np.float64:
            raise ValueError(f"{name!r} is not an array of {shape} numbers")
    return {**meta, **{name: tensors[name] for name in ARRAYS}}, axes
