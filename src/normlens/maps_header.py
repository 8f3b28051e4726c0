"""What a maps file may hold: the type of every field and the shape of every array.

A file may come from anywhere. What this module lets through can be shown, merged and exported
without surprises; the first thing that is wrong is raised as a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from normlens.axes import BY_SCOPE, GROUPS, STATISTICS, Axes, axes_of
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


#: Every field of the header: whether a value fits it, and what should be there.
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "scopes": (_is_scopes, "a list of different scopes"),
    "tokens": (lambda value: _is_list(value, _is_text) and bool(value), "a list of texts"),
    "layers": (_is_layers, "a list of layers, from 0 and in order"),
    "completeness": (_is_completeness, "a number from 0"),
    "provenance": (_is_provenance, "an object that says how the maps were made"),
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
    "text": (_is_pair_or_text, "a text, a pair of texts or null"),
}

_INTEGERS = ("special_dimensions",)
_FLOATS = ("float32", "float64")
ALLOWED = "allowed"


def check_fields(meta: Any) -> None:
    """Raise a ValueError unless the header's fields are those of a maps file."""
    if not isinstance(meta, dict):
        raise ValueError("its header is no JSON object")
    for name in FIELDS:
        if name not in meta:
            raise ValueError(f"{name!r} is missing")
    for name, value in meta.items():
        if name not in FIELDS:
            raise ValueError(f"{name!r} is no field of a maps file")
        fits, what = FIELDS[name]
        if not fits(value):
            raise ValueError(f"{name!r} is not {what}")
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
    n = len(meta["tokens"])
    sizes = {"layer": len(meta["layers"]), "target": n, "source": n}
    scopes = set(meta["scopes"])
    for key, array in tensors.items():
        axes, types = _expected(key, scopes)
        if str(array.dtype) not in types:
            raise ValueError(f"{key!r} holds {array.dtype} values")
        if not _fits(array.shape, axes, sizes):
            raise ValueError(
                f"{key!r} has shape {array.shape} for {sizes['layer']} layers and {n} tokens"
            )
    missing = {ALLOWED, *(f"arrays/{scope}" for scope in scopes)} - set(tensors)
    if missing:
        raise ValueError(f"the array {min(missing)!r} is missing")


def _expected(key: str, scopes: set[str]) -> tuple[Axes, tuple[str, ...]]:
    """The axes and the types that an array of this name may have."""
    if key == ALLOWED:
        return BY_SCOPE["arrays"], ("uint8", "bool")
    group, _, name = key.partition("/")
    known = STATISTICS if group == "statistics" else scopes
    if group not in GROUPS or name not in known:
        raise ValueError(f"{key!r} is no array of a maps file with these scopes")
    return axes_of(group, name), ("int64",) if name in _INTEGERS else _FLOATS


def _fits(shape: tuple[int, ...], axes: Axes, sizes: Mapping[str, int]) -> bool:
    """Whether a shape has these axes, and the sizes that are known of them."""
    return len(shape) == len(axes) and all(
        sizes.get(axis, length) == length for axis, length in zip(axes, shape, strict=True)
    )
