"""What a maps file may hold: the type of every field and the shape of every array.

A file may come from anywhere. What this module lets through can be shown, merged and exported
without surprises; the first thing that is wrong is raised as a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from normlens.axes import GROUPS, STATISTICS, Axes, axes_of, fits
from normlens.scopes import components_of

_LARGEST = 1 << 31  # of token ids and indices
_DEEPEST = 8  # of lists and objects in the provenance


def _is_text(value: Any) -> bool:
    # JSON can write half a character ("\ud800"), which no file could take later.
    return isinstance(value, str) and not any(0xD800 <= ord(c) <= 0xDFFF for c in value)


def _is_index(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_list(value: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(of, value))


def _is_scopes(value: Any) -> bool:
    def is_scope(name: Any) -> bool:
        return _is_text(name) and name == name.strip().upper() and bool(components_of(name))

    return _is_list(value, is_scope) and len(set(value)) == len(value)


def _is_layers(value: Any) -> bool:
    return _is_list(value, _is_index) and bool(value) and value == sorted(set(value))


def _is_completeness(value: Any) -> bool:
    """NaN is what maps of attention weights alone have."""
    return type(value) in (int, float) and (math.isnan(value) or 0 <= value < math.inf)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON's values are shallow enough for every program that walks them."""
    if depth > _DEEPEST:
        return False
    if isinstance(value, dict):
        return all(map(_is_text, value)) and _is_plain(list(value.values()), depth)
    if isinstance(value, list):
        return all(_is_plain(item, depth + 1) for item in value)
    if type(value) is int:
        return abs(value) < 1 << 63
    return not isinstance(value, str) or _is_text(value)


#: What summaries and captions read of the provenance, where it is there.
_PROVENANCE: dict[str, tuple[type, ...]] = {
    "model": (str, type(None)),
    "revision": (str, type(None)),
    "model_type": (str,),
    "components": (str,),
    "causal": (bool,),
    "nonlinearity": (str,),
    "origin": (str,),
    "tolerance": (float, int),
    "dtype": (str,),
    "compute_dtype": (str,),
    "device": (str,),
    "versions": (dict,),
}


def _is_provenance(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_plain(value)
        and all(type(value[name]) in kinds for name, kinds in _PROVENANCE.items() if name in value)
    )


def _is_pair_or_text(value: Any) -> bool:
    return value is None or _is_text(value) or (_is_list(value, _is_text) and len(value) == 2)


def _is_coverage(value: Any) -> bool:
    """The layers of arrays, which `check_fields` compares with those of the file."""
    return isinstance(value, dict) and all(map(_is_layers, value.values()))


def _is_axis(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == AXIS.keys() and _misfit(value, AXIS) is None


Fields = dict[str, tuple[Callable[[Any], bool], str]]

#: The fields of a header that describe the tokens of an axis: whether a value fits, and what
#: should be there.
AXIS: Fields = {
    "tokens": (lambda value: _is_list(value, _is_text) and bool(value), "a list of texts"),
    "token_ids": (lambda value: _is_list(value, _is_index), "a list of ids"),
    "special": (
        lambda value: _is_list(value, lambda flag: type(flag) is bool),
        "a list of true and false",
    ),
    "token_words": (
        lambda value: value is None or _is_list(value, lambda i: i is None or _is_index(i)),
        "a list of indices or null",
    ),
    "word_labels": (lambda value: _is_list(value, _is_text), "a list of texts"),
}
#: Every field of the header.
FIELDS: Fields = {
    "scopes": (_is_scopes, "a list of different scopes"),
    "tokens": AXIS["tokens"],
    "layers": (_is_layers, "a list of layers, from 0 and in order"),
    "completeness": (_is_completeness, "a number from 0"),
    "provenance": (_is_provenance, "an object that says how the maps were made"),
    **{name: field for name, field in AXIS.items() if name != "tokens"},
    "text": (_is_pair_or_text, "a text, a pair of texts or null"),
}
#: Fields that a file has only where layers differ, or where sources are other tokens than targets.
OPTIONAL: Fields = {
    "coverage": (_is_coverage, "an object with the layers of arrays"),
    "sources": (_is_axis, "an object with the tokens of the columns"),
}

#: What single heads are shown by, whichever scopes were asked for.
_OF_HEADS = {"ATTN-W", "ATTN-N", "CROSS-W", "CROSS-N"}
_INTEGERS = ("special_dimensions",)
_FLOATS = ("float32", "float64")
ALLOWED = "allowed"
SAME_TOKEN = "same_token"
#: Masks, and their axes.
MASKS: Mapping[str, Axes] = {
    ALLOWED: ("layer", "target", "source"),
    SAME_TOKEN: ("target", "source"),
}


def check_fields(meta: Any) -> None:
    """Raise a ValueError unless the header's fields are those of a maps file."""
    if not isinstance(meta, dict):
        raise ValueError("its header is no JSON object")
    for name in FIELDS:
        if name not in meta:
            raise ValueError(f"{name!r} is missing")
    for name in meta:
        if name not in FIELDS and name not in OPTIONAL:
            raise ValueError(f"{name!r} is no field of a maps file")
    if misfit := _misfit(meta, FIELDS | OPTIONAL):
        raise ValueError(misfit)
    _check_axis(meta)
    if "sources" in meta:
        _check_axis(meta["sources"])
    for key, layers in meta.get("coverage", {}).items():
        if not set(layers) < set(meta["layers"]):
            raise ValueError(f"'coverage' of {key!r} is not some of the file's layers")


def check_axis_fields(axis: Any) -> None:
    """Raise a ValueError unless the fields are those of an axis of tokens."""
    if not isinstance(axis, dict) or axis.keys() != AXIS.keys():
        raise ValueError("its header does not have the fields of tokens")
    if misfit := _misfit(axis, AXIS):
        raise ValueError(misfit)
    _check_axis(axis)


def _misfit(values: Mapping[str, Any], fields: Fields) -> str | None:
    """What is wrong with the first value that does not fit its field, if there is one."""
    for name, value in values.items():
        fits_field, what = fields[name]
        if not fits_field(value):
            return f"{name!r} is not {what}"
    return None


def _check_axis(meta: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the labels of an axis belong to its tokens."""
    n = len(meta["tokens"])
    merging = meta["token_words"] is not None
    for name, optional in (("token_ids", True), ("special", not merging), ("token_words", False)):
        left_out = meta[name] is None or (optional and not meta[name])
        if not left_out and len(meta[name]) != n:
            raise ValueError(f"{name!r} has {len(meta[name])} entries for {n} tokens")
    largest = max((word for word in meta["token_words"] or () if word is not None), default=-1)
    if largest >= len(meta["word_labels"]):
        raise ValueError(f"'token_words' names word {largest} of {len(meta['word_labels'])}")


def check_arrays(meta: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raise a ValueError unless the arrays are those that the checked header `meta` announces."""
    coverage = meta.get("coverage", {})
    targets = len(meta["tokens"])
    sources = len(meta["sources"]["tokens"]) if "sources" in meta else targets
    scopes = set(meta["scopes"])
    for key, array in tensors.items():
        axes, types = _expected(key, scopes)
        if str(array.dtype) not in types:
            raise ValueError(f"{key!r} holds {array.dtype} values")
        layers = len(coverage.get(key, meta["layers"]))
        if not fits(array.shape, axes, {"layer": layers, "target": targets, "source": sources}):
            tokens = f"{targets} tokens" if sources == targets else f"{targets} × {sources} tokens"
            raise ValueError(f"{key!r} has shape {array.shape} for {layers} layers and {tokens}")
    missing = {ALLOWED, *(f"arrays/{scope}" for scope in scopes), *coverage} - set(tensors)
    if missing:
        raise ValueError(f"the array {min(missing)!r} is missing")
    if not MASKS.keys().isdisjoint(coverage):
        raise ValueError("a mask covers all layers")


def _expected(key: str, scopes: set[str]) -> tuple[Axes, tuple[str, ...]]:
    """The axes and the types that an array of this name may have."""
    if key in MASKS:
        return MASKS[key], ("uint8", "bool")
    group, _, name = key.partition("/")
    names = {"statistics": set(STATISTICS), "heads": scopes | _OF_HEADS}.get(group, scopes)
    if group not in GROUPS or name not in names:
        raise ValueError(f"{key!r} is no array of a maps file with these scopes")
    return axes_of(group, name), ("int64",) if name in _INTEGERS else _FLOATS
