"""What files of maps, explanations and cosines hold: fields and arrays, written and read.

A file has the arrays of a result, and everything else as JSON in its header. It may come from
anywhere: the first thing that is wrong with it is raised as a ValueError, and what is let through
can be shown, merged and exported without surprises.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, parse_json
from normlens.results.axes import BY_SCOPE, EXPLANATION, GROUPS, STATISTICS, Axes, TokenAxis, fits
from normlens.results.files import Arrays, Check, CheckedOnUse
from normlens.results.routing import LARGEST_PICTURE, PatchGrid, Routing
from normlens.results.words import STACKS
from normlens.scopes import components_of

if TYPE_CHECKING:
    from normlens.results.cosine import Cosine
    from normlens.results.explanation import Explanation
    from normlens.results.maps import Maps

#: The arrays and the header of a file.
Saved = tuple[dict[str, NDArray[Any]], dict[str, str]]


# What may stand in a field.


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


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _are_different(value: Any, of: Callable[[Any], bool] = is_text) -> bool:
    return is_list(value, of) and len(set(value)) == len(value)


def _are_scopes(value: Any) -> bool:
    def is_scope(name: Any) -> bool:
        return is_text(name) and name == name.strip().upper() and bool(components_of(name))

    return _are_different(value, is_scope)


def is_pair_or_text(value: Any) -> bool:
    return value is None or is_text(value) or (is_list(value, is_text) and len(value) == 2)


# One reader for all kinds: the type of every field, the axes and types of every array.


#: Whether a value fits the field of this name, and what should be there.
Fields = Mapping[str, tuple[Callable[[Any], bool], str]]
_NONE: Fields = MappingProxyType({})

_FLOATS = ("float32", "float64")
_HALF = ("float16", *_FLOATS)
_INTEGERS = ("int64",)
_MASK = ("uint8",)


class Expected(NamedTuple):
    """The axes of an array in a file, and the types that it may have."""

    axes: Axes
    types: tuple[str, ...] = _FLOATS


def check_fields(meta: Any, fields: Fields, optional: Fields = _NONE) -> None:
    """Raise a ValueError unless a part of the header has these fields, each as it should be."""
    if not isinstance(meta, dict):
        raise ValueError("its header is no JSON object")
    for name in fields:
        if name not in meta:
            raise ValueError(f"{name!r} is missing")
    known = {**fields, **optional}
    for name, value in meta.items():
        if name not in known:
            raise ValueError(f"{name!r} is no field of such a file")
        fits_field, what = known[name]
        if not fits_field(value):
            raise ValueError(f"{name!r} is not {what}")


def check_arrays(
    arrays: Arrays,
    expected: Mapping[str, Expected],
    required: Collection[str],
    sizes: Mapping[str, int],
    coverage: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> None:
    """Raise a ValueError unless the arrays are those that the header announces.

    `sizes` are those of axes that the header knows; `coverage` has the layers of arrays that do not
    cover all.
    """
    if missing := {*required, *coverage} - set(arrays):
        raise ValueError(f"the array {min(missing)!r} is missing")
    for name, array in arrays.items():
        if name not in expected:
            raise ValueError(f"{name!r} is no array of a file with these fields")
        axes, types = expected[name]
        if str(array.dtype) not in types:
            raise ValueError(f"{name!r} holds {array.dtype} values")
        here = {**sizes, "layer": len(coverage[name])} if name in coverage else sizes
        if not fits(array.shape, axes, here):
            known = ", ".join(f"{axis} {here.get(axis, 'of any size')}" for axis in axes)
            raise ValueError(f"{name!r} has shape {array.shape} for {known}")


def _header(kind: str, version: int, **parts: Any) -> dict[str, str]:
    written = {name: json.dumps(fields, ensure_ascii=False) for name, fields in parts.items()}
    return {"format": kind, "version": str(version), **written}


#: Fields of a file that results call otherwise.
_ATTRIBUTES = {"tokens": "raw_tokens"}


def _written(result: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(result, _ATTRIBUTES.get(name, name)) for name in names}


def _as_results_call_them(fields: Mapping[str, Any]) -> dict[str, Any]:
    named = {_ATTRIBUTES.get(name, name): value for name, value in fields.items()}
    if isinstance(named.get("text"), list):
        named["text"] = tuple(named["text"])
    return named


# Parts of several kinds: tokens, the grid of a picture's patches, the routing of experts.


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


def _is_axis(value: Any) -> bool:
    try:
        check_fields(value, AXIS)
        check_axis(value)
    except ValueError:
        return False
    return True


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


def axis_of(fields: Mapping[str, Any]) -> TokenAxis:
    """The tokens of an axis from their fields in a file."""
    return TokenAxis(**_as_results_call_them(fields))


#: The names of a grid's field in a header and of the picture's array beside it.
GRID, PICTURE = "grid", "picture"
_SIZES = ("rows", "columns", "first")


def _is_grid(value: Any) -> bool:
    return (
        isinstance(value, dict) and set(value) == set(_SIZES) and all(map(is_index, value.values()))
    )


OF_PICTURE: Fields = {GRID: (_is_grid, "an object with rows, columns and the first patch")}


def saved_grid(grid: PatchGrid | None) -> dict[str, Any]:
    """The header's field, if there is a grid."""
    return {} if grid is None else {GRID: _written(grid, _SIZES)}


def _saved_picture(grid: PatchGrid | None) -> dict[str, NDArray[Any]]:
    return {} if grid is None or grid.picture is None else {PICTURE: grid.picture}


def _check_grid(meta: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
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


def _read_grid(meta: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> PatchGrid | None:
    """The grid of a checked file."""
    sizes = meta.get(GRID)
    return None if sizes is None else PatchGrid(**sizes, picture=tensors.get(PICTURE))


ROUTING = "routing"
_EXPERTS, _WEIGHTS, _SHARED = (f"{ROUTING}/{name}" for name in ("experts", "weights", "shared"))
_ROUTING: dict[str, Expected] = {
    _EXPERTS: Expected(("routed", "target", "place"), _INTEGERS),
    _WEIGHTS: Expected(("routed", "target", "place"), _HALF),
    _SHARED: Expected(("routed", "target"), _HALF),
}


def _is_routing(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"layers", "experts"}:
        return False
    return _are_layers(value["layers"]) and is_index(value["experts"]) and value["experts"] > 0


def _saved_routing(routing: Routing) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header's field of a routing, and its arrays."""
    arrays = {_EXPERTS: routing.experts.astype(np.int64), _WEIGHTS: routing.weights}
    if routing.shared is not None:
        arrays[_SHARED] = routing.shared
    return {"layers": routing.layers, "experts": routing.count}, arrays


def _read_routing(meta: Mapping[str, Any], arrays: Arrays) -> Routing | None:
    """The routing of a file whose fields and arrays have been checked, each for itself."""
    if (header := meta.get(ROUTING)) is None:
        return None
    experts, weights = arrays[_EXPERTS], arrays[_WEIGHTS]
    if not set(header["layers"]) <= set(meta["layers"]):
        raise ValueError("'routing' is not of the file's layers")
    if experts.shape != weights.shape:
        raise ValueError(f"experts of shape {experts.shape} and weights of {weights.shape}")
    if experts.size and (experts.min() < 0 or experts.max() >= header["experts"]):
        raise ValueError(f"an expert is none of {header['experts']}")
    tokens = axis_of({name: meta[name] for name in AXIS}).tokens
    shared = arrays.get(_SHARED)
    return Routing(header["layers"], experts, weights, header["experts"], tokens, shared)


# Maps.
#
# The maps of an encoder–decoder are the decoder's; the encoder's stand in the same file, their
# arrays called ``encoder/…`` and their fields in a part of the header of their own.


MAPS_FORMAT, MAPS_VERSION = "normlens-maps", 3
#: The encoder's part of a header, and what the names of its arrays begin with.
_ENCODER, OF_ENCODER = "encoder", "encoder/"
_NO_STACKS = "maps beside each other are those of an encoder and of a decoder"
#: What single heads are shown by, whichever scopes were asked for.
_OF_HEADS = ("ATTN-W", "ATTN-N", "CROSS-W", "CROSS-N")
#: Groups that may be kept in half precision.
_IN_HALF = ("arrays", "heads")
ALLOWED, SAME_TOKEN = "allowed", "same_token"
#: Masks, and their axes.
MASKS: Mapping[str, Axes] = {
    ALLOWED: ("layer", "target", "source"),
    SAME_TOKEN: ("target", "source"),
}


def _are_layers(value: Any) -> bool:
    return is_list(value, is_index) and bool(value) and value == sorted(set(value))


def _is_coverage(value: Any) -> bool:
    """The layers of arrays, which are compared with those of the file when it is read."""
    return isinstance(value, dict) and all(map(_are_layers, value.values()))


#: Every field of the header.
FIELDS: Fields = {
    "scopes": (_are_scopes, "a list of different scopes"),
    "tokens": AXIS["tokens"],
    "layers": (_are_layers, "a list of layers, from 0 and in order"),
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
    "routing": (_is_routing, "an object with the layers and the number of experts"),
    **OF_PICTURE,
}


def saved_maps(maps: Maps) -> Saved:
    """The arrays and the header of a file of maps."""
    fields, tensors = _saved_stack(maps)
    parts = {"maps": fields}
    if maps.encoder is not None:
        if (maps.encoder.stack, maps.stack) != STACKS:
            raise InputError(f"{_NO_STACKS}; provenance['stack'] says which one maps are")
        parts[_ENCODER], of_encoder = _saved_stack(maps.encoder)
        tensors |= {f"{OF_ENCODER}{name}": array for name, array in of_encoder.items()}
    return tensors, _header(MAPS_FORMAT, MAPS_VERSION, **parts)


def _saved_stack(maps: Maps) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    fields = _written(maps, FIELDS)
    tensors = {
        f"{group}/{name}": array
        for group, arrays in maps.groups.items()
        for name, array in arrays.items()
    }
    tensors[ALLOWED] = _bytes(maps.allowed)
    if maps.same_token is not None:
        tensors[SAME_TOKEN] = _bytes(maps.same_token)
    if maps.coverage:
        fields["coverage"] = dict(maps.coverage)
    if maps.source_axis is not None:
        fields["sources"] = _written(maps.source_axis, AXIS)
    if maps.routing is not None:
        fields[ROUTING], arrays = _saved_routing(maps.routing)
        tensors |= arrays
    tensors |= _saved_picture(maps.grid)
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return fields | saved_grid(maps.grid), contiguous


def maps_parts(
    header: Mapping[str, str], tensors: Arrays, check: Check | None = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The fields of saved maps, and those of the encoder's beside them, if there are some.

    A ValueError says what does not fit. `check` is given where the arrays are still in the file: it
    is called for each array of a group when that is first used, and for the others here.
    """
    if _ENCODER not in header:
        return _read_stack(header["maps"], tensors, check), None
    decoder, encoder = {}, {}
    for name, array in tensors.items():
        if name.startswith(OF_ENCODER):
            encoder[name.removeprefix(OF_ENCODER)] = array
        else:
            decoder[name] = array
    both = (
        _read_stack(header[_ENCODER], encoder, check, OF_ENCODER),
        _read_stack(header["maps"], decoder, check),
    )
    if tuple(fields["provenance"].get("stack") for fields in both) != STACKS:
        raise ValueError(_NO_STACKS)
    return both[1], both[0]


def _read_stack(
    text: str, tensors: Arrays, check: Check | None, prefix: str = ""
) -> dict[str, Any]:
    """What `Maps` takes, from the header's JSON and the arrays of one stack.

    `prefix` is what the names of these arrays begin with in the file.
    """
    meta = parse_json(text)
    check_maps_fields(meta)
    check_maps_arrays(meta, tensors)
    groups: dict[str, Any] = {group: {} for group in GROUPS}
    for key, array in tensors.items():
        group, _, name = key.partition("/")
        if group in GROUPS:
            groups[group][name] = array
        elif check is not None:
            check(prefix + key)
    meta["routing"] = _read_routing(meta, tensors)
    meta["grid"] = _read_grid(meta, tensors)
    # safetensors sorts its tensors; the layer's order is in the header.
    groups["arrays"] = {scope: groups["arrays"][scope] for scope in meta.pop("scopes")}
    if check is not None:
        groups = {
            group: CheckedOnUse(arrays, check, f"{prefix}{group}/")
            for group, arrays in groups.items()
        }
    if (sources := meta.pop("sources", None)) is not None:
        meta["source_axis"] = axis_of(sources)
    masks = {name: _truth(tensors[name]) for name in MASKS if name in tensors}
    return {**masks, **groups, **_as_results_call_them(meta)}


def check_maps_fields(meta: Any) -> None:
    """Raise a ValueError unless the header's fields are those of a maps file."""
    check_fields(meta, FIELDS, OPTIONAL)
    check_axis(meta)
    for key, layers in meta.get("coverage", {}).items():
        if not set(layers) < set(meta["layers"]):
            raise ValueError(f"'coverage' of {key!r} is not some of the file's layers")
        if key in MASKS:
            raise ValueError("a mask covers all layers")


def check_maps_arrays(meta: Mapping[str, Any], tensors: Arrays) -> None:
    """Raise a ValueError unless the arrays are those that the checked header `meta` announces."""
    scopes = meta["scopes"]
    required = [ALLOWED, *(f"arrays/{scope}" for scope in scopes)]
    expected = {name: Expected(axes, _MASK) for name, axes in MASKS.items()}
    for group, axes in BY_SCOPE.items():
        names = (*scopes, *_OF_HEADS) if group == "heads" else scopes
        types = _HALF if group in _IN_HALF else _FLOATS
        expected |= {f"{group}/{name}": Expected(axes, types) for name in names}
    for name, axes in STATISTICS.items():
        whole = name == "special_dimensions"
        expected[f"statistics/{name}"] = Expected(axes, _INTEGERS if whole else _FLOATS)
    targets = len(meta["tokens"])
    sources = len(meta["sources"]["tokens"]) if "sources" in meta else targets
    sizes = {"layer": len(meta["layers"]), "target": targets, "source": sources}
    if ROUTING in meta:
        expected |= _ROUTING
        required += [_EXPERTS, _WEIGHTS]
        sizes["routed"] = len(meta[ROUTING]["layers"])
    _check_grid(meta, tensors)
    arrays = {name: array for name, array in tensors.items() if name != PICTURE}
    check_arrays(arrays, expected, required, sizes, meta.get("coverage", {}))


def _bytes(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(mask, dtype=bool).view(np.uint8)


def _truth(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask from a file; no copy where its bytes are 0 and 1 already."""
    return mask.view(np.bool_) if mask.max(initial=0) <= 1 else mask.astype(bool)


# Explanations: one, or those of each next token of a text, which share most of their fields.


ONE = "normlens-explanation"  # the format of a file with one explanation
SEVERAL = "normlens-explanations"  # and of one with those of each next token
EXPLANATION_VERSION = 1
FLOW = "flow"
ALWAYS = ("nodes", "components", "heads")
CROSS_HEADS = "cross_heads"  # of an encoder–decoder's
#: How far a file's numbers may miss their sum beside the completeness that it states.
_ROUNDING = 1e-6


def _is_bias(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and (value[0] == "head" or is_index(value[0]))
        and is_text(value[1])
        and _is_number(value[2])
    )


def _is_note(value: Any) -> bool:
    return is_provenance(value) and isinstance(value.get("note", ""), str)


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
    "scopes": FIELDS["scopes"],
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


def saved_explanations(explanations: Sequence[Explanation], kind: str) -> Saved:
    """The arrays and the header of the file of one explanation, or of several of one text."""
    shared = _shared(explanations[0])
    tensors = _saved_picture(explanations[0].grid)
    for place, explanation in enumerate(explanations):
        if _shared(explanation) != shared:
            raise InputError(
                "these explanations are not of one text, so one file cannot hold them; save each"
            )
        prefix = "" if kind == ONE else f"{place}/"
        for name, array in _explanation_arrays(explanation).items():
            tensors[prefix + name] = np.ascontiguousarray(array)
    each = [_written(explanation, EACH) for explanation in explanations]
    parts = {"explanation": {"shared": shared, "each": each}}
    return tensors, _header(kind, EXPLANATION_VERSION, **parts)


def _shared(explanation: Explanation) -> dict[str, Any]:
    names = [name for name in SHARED if name != "scopes"]
    names += OF_TWO if explanation.has_two_sequences else ()
    scopes = [scope for scope in explanation.flows if scope]
    return {**_written(explanation, names), "scopes": scopes, **saved_grid(explanation.grid)}


def _explanation_arrays(explanation: Explanation) -> dict[str, NDArray[Any]]:
    arrays = _written(explanation, (*ALWAYS, "head_flow", CROSS_HEADS))
    for scope, flow in explanation.flows.items():
        arrays[f"{FLOW}/{scope}" if scope else FLOW] = flow
    return {name: array for name, array in arrays.items() if array is not None}


def explanation_parts(header: Mapping[str, str], tensors: Arrays) -> list[dict[str, Any]]:
    """The fields of each `Explanation` in a file."""
    meta = parse_json(header["explanation"])
    if not isinstance(meta, dict) or set(meta) != {"shared", "each"}:
        raise ValueError("its header is not that of an explanation")
    shared, each = meta["shared"], meta["each"]
    several = header["format"] == SEVERAL
    if not isinstance(each, list) or not each or (len(each) > 1 and not several):
        raise ValueError("'each' is not a list of explanations")
    # Of two sequences all of their fields are there, or none.
    of_two = OF_TWO if isinstance(shared, dict) and set(shared) & set(OF_TWO) else {}
    check_fields(shared, {**SHARED, **of_two}, OF_PICTURE)
    check_axis(shared)
    _check_grid(shared, tensors)
    labels = _as_results_call_them({**shared, "grid": _read_grid(shared, tensors)})
    del labels["scopes"]
    arrays: list[dict[str, NDArray[Any]]] = [{} for _ in each]
    for key, array in tensors.items():
        if key == PICTURE:
            continue
        place, _, name = key.partition("/") if several else ("0", "", key)
        if not (place.isdecimal() and place.isascii() and int(place) < len(each)):
            raise ValueError(f"{key!r} is no array of this file")
        arrays[int(place)][name] = array
    return [
        _explanation(fields, own, shared, labels) for fields, own in zip(each, arrays, strict=True)
    ]


def _explanation(
    fields: Any, arrays: dict[str, NDArray[Any]], shared: Mapping[str, Any], labels: dict[str, Any]
) -> dict[str, Any]:
    check_fields(fields, EACH)
    _check_explanation_arrays(arrays, shared)
    layers, n = arrays["nodes"].shape
    n -= shared.get("encoder_tokens", 0)  # a position is one of the target's
    for name, count in (("position", n), ("layer", layers)):
        if fields[name] is not None and fields[name] >= count:
            raise ValueError(f"{name!r} is {fields[name]} of {count}")
    biases = [tuple(bias) for bias in fields["biases"]]
    if any(layer != "head" and layer >= layers for layer, *_ in biases):
        raise ValueError(f"'biases' names a layer beyond the {layers} of the file")
    _check_sum(fields, arrays["nodes"], [share for *_, share in biases])
    flows = {scope: arrays.pop(f"{FLOW}/{scope}") for scope in shared["scopes"]}
    if FLOW in arrays:
        flows = {"": arrays.pop(FLOW), **flows}
    return {**labels, **fields, **arrays, "biases": biases, "flows": flows}


def _check_explanation_arrays(arrays: Arrays, shared: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the arrays are those that the checked fields announce."""
    flows = [f"{FLOW}/{scope}" for scope in shared["scopes"]]
    two = [CROSS_HEADS] if "encoder_tokens" in shared else []
    expected = {name: Expected(axes) for name, axes in EXPLANATION.items()}
    expected |= dict.fromkeys(flows, expected[FLOW])
    if not two and CROSS_HEADS in arrays:
        raise ValueError(f"{CROSS_HEADS!r} is no array of an explanation of one sequence")
    n = len(shared["tokens"])
    sizes = {"target": n, "source": n, "component": len(shared["component_names"])}
    if "nodes" in arrays and arrays["nodes"].ndim:
        sizes["layer"] = len(arrays["nodes"])
    check_arrays(arrays, expected, [*ALWAYS, *flows, *two], sizes)
    for name, array in arrays.items():
        if not array.size:
            raise ValueError(f"{name!r} has shape {array.shape}")
    if two:
        for name, count in (("encoder_tokens", n), ("encoder_layers", sizes["layer"])):
            if not 0 < shared[name] < count:
                raise ValueError(f"{name!r} is {shared[name]} of {count}")
    if not np.isfinite(arrays["nodes"]).all():
        raise ValueError("'nodes' holds numbers that are not finite")


def _check_sum(fields: Mapping[str, Any], nodes: NDArray[Any], biases: list[float]) -> None:
    """Raise a ValueError unless contributions and biases make the score that the file states."""
    value = fields["value"]
    scores = [abs(fields[name] or 0.0) for name in ("target_value", "contrast_value")]
    scale = max(abs(value), *scores, *map(abs, biases), float(np.abs(nodes).max()))
    total = float(nodes[0].sum(dtype=np.float64)) + sum(biases)
    if abs(total - value) > 2 * (fields["completeness"] + _ROUNDING) * scale:
        raise ValueError(f"its contributions and biases sum to {total:.6g}, not to {value:.6g}")


# Cosines.


COSINE_FORMAT, COSINE_VERSION = "normlens-cosine", 1
_AXES: Fields = dict.fromkeys(("a", "b"), (_is_axis, "an object with the tokens of a text"))
COSINE: Fields = {
    **dict.fromkeys(("value", "bias", "completeness"), (_is_number, "a number")),
    **dict.fromkeys(("text_a", "text_b"), _TEXT_OR_NULL),
    "provenance": FIELDS["provenance"],
}
_COSINE_ARRAYS: dict[str, Expected] = {
    "matrix": Expected(("a", "b"), ("float64",)),
    "a_with_bias": Expected(("a",), ("float64",)),
    "b_with_bias": Expected(("b",), ("float64",)),
}


def saved_cosine(cosine: Cosine) -> Saved:
    """The arrays and the header of a cosine's file."""
    arrays = _written(cosine, _COSINE_ARRAYS)
    fields = _written(cosine, COSINE) | {
        name: _written(axis, AXIS) for name, axis in _written(cosine, _AXES).items()
    }
    header = _header(COSINE_FORMAT, COSINE_VERSION, cosine=fields)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return contiguous, {**header, "kind": "cosine"}


def cosine_parts(header: Mapping[str, str], tensors: Arrays) -> dict[str, Any]:
    """The fields of a saved cosine; a ValueError where they do not fit."""
    meta = parse_json(header["cosine"])
    check_fields(meta, {**COSINE, **_AXES})
    axes = {name: axis_of(meta[name]) for name in _AXES}
    sizes = {name: len(axis) for name, axis in axes.items()}
    check_arrays(tensors, _COSINE_ARRAYS, tuple(_COSINE_ARRAYS), sizes)
    return {**meta, **tensors, **axes}
