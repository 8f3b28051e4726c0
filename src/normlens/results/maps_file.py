"""Maps on disk: one safetensors file, everything but the arrays as JSON in its header.

The maps of an encoder–decoder are the decoder's; the encoder's stand in the same file, their arrays
called ``encoder/…`` and their fields in a part of the header of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.json_text import parse_json
from normlens.results import patches_file, routing_file
from normlens.results.axes import GROUPS
from normlens.results.both_stacks import STACKS
from normlens.results.checksums import Check, CheckedOnUse
from normlens.results.header_fields import AXIS
from normlens.results.maps_header import (
    ALLOWED,
    FIELDS,
    MASKS,
    SAME_TOKEN,
    check_arrays,
    check_fields,
)
from normlens.results.tokens import TokenAxis

if TYPE_CHECKING:
    from normlens.results.labelled import LabelledMaps

FORMAT = "normlens-maps"
FORMAT_VERSION = 3
#: The encoder's part of a header, and what the names of its arrays begin with.
_ENCODER, OF_ENCODER = "encoder", "encoder/"
_NO_STACKS = "maps beside each other are those of an encoder and of a decoder"
#: Fields of a file that maps call otherwise.
_ATTRIBUTES = {"tokens": "raw_tokens"}


def saved(maps: LabelledMaps) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the header of a file of maps."""
    fields, tensors = _fields_of(maps), _tensors_of(maps)
    header = {
        "format": FORMAT,
        "version": str(FORMAT_VERSION),
        "maps": json.dumps(fields, ensure_ascii=False),
    }
    if maps.encoder is not None:
        if (maps.encoder.stack, maps.stack) != STACKS:
            raise InputError(f"{_NO_STACKS}; provenance['stack'] says which one maps are")
        header[_ENCODER] = json.dumps(_fields_of(maps.encoder), ensure_ascii=False)
        of_encoder = _tensors_of(maps.encoder)
        tensors |= {f"{OF_ENCODER}{name}": array for name, array in of_encoder.items()}
    return tensors, header


def parts_of(
    header: Mapping[str, str], tensors: Mapping[str, NDArray[Any]], check: Check | None = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The fields of saved maps, and those of the encoder's beside them, if there are some.

    A ValueError says what does not fit. `check` is given where the arrays are still in the file: it
    is called for each array of a group when that is first used, and for the others here.
    """
    if _ENCODER not in header:
        return _read(header["maps"], tensors, check), None
    decoder, encoder = {}, {}
    for name, array in tensors.items():
        if name.startswith(OF_ENCODER):
            encoder[name.removeprefix(OF_ENCODER)] = array
        else:
            decoder[name] = array
    both = (
        _read(header[_ENCODER], encoder, check, OF_ENCODER),
        _read(header["maps"], decoder, check),
    )
    if tuple(fields["provenance"].get("stack") for fields in both) != STACKS:
        raise ValueError(_NO_STACKS)
    return both[1], both[0]


def axis_of(fields: Mapping[str, Any]) -> TokenAxis:
    """The tokens of an axis from their fields in a file."""
    return TokenAxis(**_as_maps_call_them(fields))


def _fields_of(maps: LabelledMaps) -> dict[str, Any]:
    """Everything but the arrays, as a file calls it."""
    fields = _written(maps, FIELDS)
    if maps.coverage:
        fields["coverage"] = dict(maps.coverage)
    if maps.source_axis is not None:
        fields["sources"] = _written(maps.source_axis, AXIS)
    if maps.routing is not None:
        fields["routing"], _ = routing_file.parts_of(maps.routing)
    return fields | patches_file.saved_grid(maps.grid)


def _tensors_of(maps: LabelledMaps) -> dict[str, NDArray[Any]]:
    tensors = {
        f"{group}/{name}": np.ascontiguousarray(array)
        for group, arrays in maps.groups.items()
        for name, array in arrays.items()
    }
    tensors[ALLOWED] = _bytes(maps.allowed)
    if maps.same_token is not None:
        tensors[SAME_TOKEN] = _bytes(maps.same_token)
    if maps.routing is not None:
        tensors |= routing_file.parts_of(maps.routing)[1]
    return tensors | patches_file.saved_picture(maps.grid)


def _written(labelled: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(labelled, _ATTRIBUTES.get(name, name)) for name in names}


def _as_maps_call_them(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_ATTRIBUTES.get(name, name): value for name, value in fields.items()}


def _read(
    text: str, tensors: Mapping[str, NDArray[Any]], check: Check | None, prefix: str = ""
) -> dict[str, Any]:
    """What `Maps` takes, from the header's JSON and the arrays of one stack.

    `prefix` is what the names of these arrays begin with in the file.
    """
    meta = parse_json(text)
    check_fields(meta)
    check_arrays(meta, tensors)
    groups: dict[str, Any] = {group: {} for group in GROUPS}
    for key, array in tensors.items():
        group, _, name = key.partition("/")
        if group in GROUPS:
            groups[group][name] = array
        elif check is not None:
            check(prefix + key)
    # safetensors sorts its tensors; the layer's order is in the header.
    groups["arrays"] = {scope: groups["arrays"][scope] for scope in meta.pop("scopes")}
    if check is not None:
        groups = {
            group: CheckedOnUse(arrays, check, f"{prefix}{group}/")
            for group, arrays in groups.items()
        }
    if isinstance(meta["text"], list):
        meta["text"] = tuple(meta["text"])
    if (sources := meta.pop("sources", None)) is not None:
        meta["source_axis"] = axis_of(sources)
    if (routing := meta.pop("routing", None)) is not None:
        tokens = axis_of({name: meta[name] for name in AXIS}).tokens
        meta["routing"] = routing_file.routing_of(routing, tensors, tokens)
    meta["grid"] = patches_file.read_grid(meta, tensors)
    masks = {name: _truth(tensors[name]) for name in MASKS if name in tensors}
    return {**masks, **groups, **_as_maps_call_them(meta)}


def _bytes(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(mask, dtype=bool).view(np.uint8)


def _truth(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask from a file; no copy where its bytes are 0 and 1 already."""
    return mask.view(np.bool_) if mask.max(initial=0) <= 1 else mask.astype(bool)
