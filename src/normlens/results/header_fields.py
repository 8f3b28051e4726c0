"""Fields of the headers of NormLens files: what fits, in whichever kind of file it stands.

A file may come from anywhere. What is wrong is raised as a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

_LARGEST = 1 << 31  # of token ids and indices
_DEEPEST = 8  # of lists and objects in the provenance


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_index(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def is_list(value: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(of, value))


def is_completeness(value: Any) -> bool:
    """NaN is what maps of attention weights alone have."""
    return type(value) in (int, float) and (math.isnan(value) or 0 <= value < math.inf)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON's values are shallow enough for every program that walks them."""
    if depth > _DEEPEST:
        return False
    if isinstance(value, dict):
        return _is_plain(list(value.values()), depth)
    if isinstance(value, list):
        return all(_is_plain(item, depth + 1) for item in value)
    if type(value) is int:
        return abs(value) < 1 << 63
    return True


#: What summaries and captions read of the provenance, where it is there.
_PROVENANCE: dict[str, tuple[type, ...]] = {
    "model": (str, type(None)),
    "revision": (str, type(None)),
    "model_type": (str,),
    "components": (str,),
    "causal": (bool,),
    "nonlinearity": (str,),
    "origin": (str,),
    "stack": (str,),
    "target": (str,),
    "tolerance": (float, int),
    "dtype": (str,),
    "compute_dtype": (str,),
    "device": (str,),
    "versions": (dict,),
}


def is_provenance(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_plain(value)
        and all(type(value[name]) in kinds for name, kinds in _PROVENANCE.items() if name in value)
    )


def is_pair_or_text(value: Any) -> bool:
    return value is None or is_text(value) or (is_list(value, is_text) and len(value) == 2)


Fields = dict[str, tuple[Callable[[Any], bool], str]]

#: The fields of a header that describe the tokens of an axis: whether a value fits, and what
#: should be there.
AXIS: Fields = {
    "tokens": (lambda value: is_list(value, is_text) and bool(value), "a list of texts"),
    "token_ids": (lambda value: is_list(value, is_index), "a list of ids"),
    "special": (
        lambda value: is_list(value, lambda flag: type(flag) is bool),
        "a list of true and false",
    ),
    "token_words": (
        lambda value: value is None or is_list(value, lambda i: i is None or is_index(i)),
        "a list of indices or null",
    ),
    "word_labels": (lambda value: is_list(value, is_text), "a list of texts"),
}


def misfit(values: Mapping[str, Any], fields: Fields) -> str | None:
    """What is wrong with the first value that does not fit its field, if there is one."""
    for name, value in values.items():
        fits_field, what = fields[name]
        if not fits_field(value):
            return f"{name!r} is not {what}"
    return None


def check_axis(meta: Mapping[str, Any]) -> None:
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


def check_axis_fields(axis: Any) -> None:
    """Raise a ValueError unless the fields are those of an axis of tokens."""
    if not isinstance(axis, dict) or axis.keys() != AXIS.keys():
        raise ValueError("its header does not have the fields of tokens")
    if wrong := misfit(axis, AXIS):
        raise ValueError(wrong)
    check_axis(axis)
