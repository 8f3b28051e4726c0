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
from normlens.maps_header import FIELDS

if TYPE_CHECKING:
    from normlens.cosine import Cosine

FORMAT = "normlens-cosine"
FORMAT_VERSION = 1
ARRAYS = ("matrix", "a_with_bias", "b_with_bias")
NUMBERS = ("value", "bias", "completeness")
#: What is said of each text, by the name of the same field in maps files.
TEXTS = {
    "raw_tokens": "tokens",
    "token_ids": "token_ids",
    "special": "special",
    "token_words": "token_words",
    "word_labels": "word_labels",
    "text": "text",
}


def saved(cosine: Cosine) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the header of a cosine's file."""
    tensors = {name: np.ascontiguousarray(getattr(cosine, name)) for name in ARRAYS}
    meta = {name: getattr(cosine, name) for name in (*NUMBERS, "provenance")}
    meta |= {name: asdict(getattr(cosine, name)) for name in ("a", "b")}
    return tensors, {
        "format": FORMAT,
        "kind": "cosine",
        "version": str(FORMAT_VERSION),
        "cosine": json.dumps(meta, ensure_ascii=False),
    }


def parts_of(
    header: Mapping[str, str], tensors: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The fields of a saved cosine, and those of its texts; a ValueError where they do not fit."""
    meta = parse_json(header["cosine"])
    if not isinstance(meta, dict) or set(meta) != {*NUMBERS, "provenance", "a", "b"}:
        raise ValueError("its header does not have the fields of a cosine")
    for name in NUMBERS:
        if type(meta[name]) not in (int, float) or not math.isfinite(meta[name]):
            raise ValueError(f"{name!r} is not a number")
    _check("provenance", meta["provenance"], "provenance")
    texts = {name: meta.pop(name) for name in ("a", "b")}
    for text in texts.values():
        if not isinstance(text, dict) or set(text) != set(TEXTS):
            raise ValueError("its header does not have the fields of a text")
        for name, field in TEXTS.items():
            _check(name, text[name], field)
        n = len(text["raw_tokens"])
        for name in ("token_ids", "special", "token_words"):
            if text[name] and len(text[name]) != n:
                raise ValueError(f"{name!r} has {len(text[name])} entries for {n} tokens")
        words = [word for word in text["token_words"] or () if word is not None]
        if max(words, default=-1) >= len(text["word_labels"]):
            raise ValueError("'token_words' names words that are not there")
    sizes = tuple(len(texts[name]["raw_tokens"]) for name in ("a", "b"))
    shapes = dict(zip(ARRAYS, (sizes, sizes[:1], sizes[1:]), strict=True))
    for name, shape in shapes.items():
        if tensors[name].shape != shape or tensors[name].dtype != np.float64:
            raise ValueError(f"{name!r} is not an array of {shape} numbers")
    return {**meta, **{name: tensors[name] for name in ARRAYS}}, texts


def _check(name: str, value: Any, field: str) -> None:
    fits, what = FIELDS[field]
    if not fits(value) or (field == "text" and isinstance(value, list)):
        raise ValueError(f"{name!r} is not {what}")
