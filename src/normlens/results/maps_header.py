"""What a maps file may hold: the type of every field and the shape of every array.

A file may come from anywhere. What this module lets through can be shown, merged and exported
without surprises; the first thing that is wrong is raised as a ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from normlens.results import patches_file, routing_file
from normlens.results.axes import GROUPS, STATISTICS, Axes, axes_of, fits
from normlens.results.header_fields import (
    AXIS,
    Fields,
    check_axis,
    is_completeness,
    is_index,
    is_list,
    is_pair_or_text,
    is_provenance,
    is_text,
    misfit,
)
from normlens.scopes import components_of


def _is_scopes(value: Any) -> bool:
    def is_scope(name: Any) -> bool:
        return is_text(name) and name == name.strip().upper() and bool(components_of(name))

    return is_list(value, is_scope) and len(set(value)) == len(value)


def _is_layers(value: Any) -> bool:
    return is_list(value, is_index) and bool(value) and value == sorted(set(value))


def _is_coverage(value: Any) -> bool:
    """The layers of arrays, which `check_fields` compares with those of the file."""
    return isinstance(value, dict) and all(map(_is_layers, value.values()))


def _is_axis(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == AXIS.keys() and misfit(value, AXIS) is None


#: Every field of the header.
FIELDS: Fields = {
    "scopes": (_is_scopes, "a list of different scopes"),
    "tokens": AXIS["tokens"],
    "layers": (_is_layers, "a list of layers, from 0 and in order"),
    "completeness": (is_completeness, "a number from 0"),
    "provenance": (is_provenance, "an object that says how the maps were made"),
    **{name: field for name, field in AXIS.items() if name != "tokens"},
    "text": (is_pair_or_text, "a text, a pair of texts or null"),
}
#: Fields that a file has only where layers differ, where sources are other tokens than targets, or
#: where the tokens are patches of a picture.
OPTIONAL: Fields = {
    "coverage": (_is_coverage, "an object with the layers of arrays"),
    "sources": (_is_axis, "an object with the tokens of the columns"),
    "routing": (routing_file.is_header, "an object with the layers and the number of experts"),
    **patches_file.FIELD,
}

#: What single heads are shown by, whichever scopes were asked for.
_OF_HEADS = {"ATTN-W", "ATTN-N", "CROSS-W", "CROSS-N"}
_INTEGERS = ("special_dimensions",)
_FLOATS = ("float32", "float64")
#: Groups that may be kept in half precision.
_IN_HALF = ("arrays", "heads")
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
    if wrong := misfit(meta, FIELDS | OPTIONAL):
        raise ValueError(wrong)
    check_axis(meta)
    if "sources" in meta:
        check_axis(meta["sources"])
    for key, layers in meta.get("coverage", {}).items():
        if not set(layers) < set(meta["layers"]):
            raise ValueError(f"'coverage' of {key!r} is not some of the file's layers")


def check_arrays(meta: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raise a ValueError unless the arrays are those that the checked header `meta` announces."""
    coverage = meta.get("coverage", {})
    targets = len(meta["tokens"])
    sources = len(meta["sources"]["tokens"]) if "sources" in meta else targets
    scopes = set(meta["scopes"])
    routing_file.check(meta.get("routing"), tensors, meta["layers"], targets)
    patches_file.check_grid(meta, tensors)
    for key, array in tensors.items():
        if key == patches_file.PICTURE or key.startswith(f"{routing_file.GROUP}/"):
            continue
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
        return MASKS[key], ("uint8",)
    group, _, name = key.partition("/")
    names = {"statistics": set(STATISTICS), "heads": scopes | _OF_HEADS}.get(group, scopes)
    if group not in GROUPS or name not in names:
        raise ValueError(f"{key!r} is no array of a maps file with these scopes")
    floats = ("float16", *_FLOATS) if group in _IN_HALF else _FLOATS
    return axes_of(group, name), ("int64",) if name in _INTEGERS else floats
