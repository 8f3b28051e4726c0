"""Headers of result files: the type of every field and the shape of every array."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.results.axes import EXPLANATION, GROUPS, STATISTICS, Axes, axes_of, fits
from normlens.results.routing import LARGEST_PICTURE, PatchGrid, Routing
from normlens.scopes import components_of

# Fields of the headers of NormLens files: what fits, in whichever kind of file it stands.
#
# A file may come from anywhere. What is wrong is raised as a ValueError.


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


# The routing of experts in a maps file: a field of the header, and arrays.


GROUP = "routing"
_EXPERTS, _WEIGHTS, _SHARED = (f"{GROUP}/{name}" for name in ("experts", "weights", "shared"))


def parts_of(routing: Routing) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header's field of a routing, and its arrays."""
    arrays = {
        _EXPERTS: np.ascontiguousarray(routing.experts.astype(np.int64)),
        _WEIGHTS: np.ascontiguousarray(routing.weights),
    }
    if routing.shared is not None:
        arrays[_SHARED] = np.ascontiguousarray(routing.shared)
    return {"layers": routing.layers, "experts": routing.count}, arrays


def routing_of(
    header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], tokens: list[str]
) -> Routing:
    """The routing that a checked file holds."""
    return Routing(
        header["layers"],
        tensors[_EXPERTS],
        tensors[_WEIGHTS],
        header["experts"],
        tokens,
        tensors.get(_SHARED),
    )


def is_header(value: Any) -> bool:
    """Whether this may be the header's field of a routing."""
    if not isinstance(value, dict) or value.keys() != {"layers", "experts"}:
        return False
    layers, experts = value["layers"], value["experts"]
    return is_list(layers, is_index) and bool(layers) and is_index(experts) and experts > 0


def check(
    header: Mapping[str, Any] | None,
    tensors: Mapping[str, NDArray[Any]],
    layers: Sequence[int],
    tokens: int,
) -> None:
    """Raise a ValueError unless the arrays are those that a header announces."""
    given = {name: array for name, array in tensors.items() if name.startswith(f"{GROUP}/")}
    if header is None:
        if given:
            raise ValueError(f"{min(given)!r} belongs to no field 'routing'")
        return
    if set(given) - {_SHARED} != {_EXPERTS, _WEIGHTS}:
        raise ValueError("the arrays of 'routing' are not its experts and weights")
    if not set(header["layers"]) <= set(layers) or header["layers"] != sorted(
        set(header["layers"])
    ):
        raise ValueError("'routing' is not of the file's layers")
    size = len(header["layers"]), tokens
    experts, weights = given[_EXPERTS], given[_WEIGHTS]
    if experts.dtype != np.int64 or not np.issubdtype(weights.dtype, np.floating):
        raise ValueError(f"'routing' holds {experts.dtype} and {weights.dtype} values")
    if experts.ndim != 3 or experts.shape[:2] != size or experts.shape != weights.shape:
        raise ValueError(f"experts of shape {experts.shape} for {size[0]} layers, {tokens} tokens")
    if experts.size and (experts.min() < 0 or experts.max() >= header["experts"]):
        raise ValueError(f"an expert is none of {header['experts']}")
    shared = given.get(_SHARED)
    if shared is not None and (
        shared.shape != size or not np.issubdtype(shared.dtype, np.floating)
    ):
        raise ValueError(f"{_SHARED!r} has shape {shared.shape}")


# The grid of a picture's patches in files: three numbers in the header, the picture as an array.
#
# A file may come from anywhere. What is wrong is raised as a ValueError.


#: The names of the field in a header and of the array beside it.
GRID, PICTURE = "grid", "picture"
_SIZES = ("rows", "columns", "first")


def _is_grid(value: Any) -> bool:
    return (
        isinstance(value, dict) and set(value) == set(_SIZES) and all(map(is_index, value.values()))
    )


#: The field as those of a header are described.
FIELD: Fields = {GRID: (_is_grid, "an object with rows, columns and the first patch")}


def saved_grid(grid: PatchGrid | None) -> dict[str, Any]:
    """The header's field, if there is a grid."""
    return {} if grid is None else {GRID: {name: getattr(grid, name) for name in _SIZES}}


def saved_picture(grid: PatchGrid | None) -> dict[str, NDArray[Any]]:
    """The array, if there is a picture."""
    return {} if grid is None or grid.picture is None else {PICTURE: grid.picture}


def check_grid(meta: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raise a ValueError unless the checked field fits the tokens, and the picture the field."""
    sizes, picture = meta.get(GRID), tensors.get(PICTURE)
    if sizes is None:
        if picture is not None:
            raise ValueError("'picture' is there without a grid")
        return
    patches, n = sizes["rows"] * sizes["columns"], len(meta["tokens"])
    if not patches or sizes["first"] + patches > n:
        raise ValueError(f"'grid' has {patches} patches from token {sizes['first']} on, of {n}")
    if picture is None:
        return
    shape = picture.shape
    if str(picture.dtype) != "uint8" or len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise ValueError(f"'picture' has shape {shape} of {picture.dtype} values")
    if max(shape) > LARGEST_PICTURE:
        raise ValueError(f"'picture' has shape {shape}, and no side is above {LARGEST_PICTURE}")


def read_grid(meta: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> PatchGrid | None:
    """The grid of a checked file."""
    sizes = meta.get(GRID)
    return None if sizes is None else PatchGrid(**sizes, picture=tensors.get(PICTURE))


# What a maps file may hold: the type of every field and the shape of every array.
#
# A file may come from anywhere. What this module lets through can be shown, merged and exported
# without surprises; the first thing that is wrong is raised as a ValueError.


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
    "routing": (is_header, "an object with the layers and the number of experts"),
    **FIELD,
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


def check_maps_fields(meta: Any) -> None:
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


def check_maps_arrays(meta: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raise a ValueError unless the arrays are those that the checked header `meta` announces."""
    coverage = meta.get("coverage", {})
    targets = len(meta["tokens"])
    sources = len(meta["sources"]["tokens"]) if "sources" in meta else targets
    scopes = set(meta["scopes"])
    check(meta.get("routing"), tensors, meta["layers"], targets)
    check_grid(meta, tensors)
    for key, array in tensors.items():
        if key == PICTURE or key.startswith(f"{GROUP}/"):
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


# What a file of explanations may hold: the type of every field and the shape of every array.
#
# A file may come from anywhere; the first thing that is wrong is raised as a ValueError.


FLOW = "flow"
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


def check_explanation_fields(meta: Any, fields: Fields) -> None:
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


def check_explanation_arrays(arrays: Mapping[str, NDArray[Any]], shared: Mapping[str, Any]) -> None:
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
