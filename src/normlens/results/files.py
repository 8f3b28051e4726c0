"""Maps, explanations and cosines as safetensors files, written at once or layer by layer."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, MapsFileError, OutputError, parse_json
from normlens.results import headers
from normlens.results.axes import GROUPS, STACKS, TokenAxis
from normlens.results.headers import (
    ALLOWED,
    ALWAYS,
    AXIS,
    CROSS_HEADS,
    EACH,
    FIELDS,
    FLOW,
    MASKS,
    OF_TWO,
    SAME_TOKEN,
    SHARED,
    Fields,
    check_axis,
    check_axis_fields,
    check_explanation_arrays,
    check_explanation_fields,
    check_maps_arrays,
    check_maps_fields,
    check_sum,
)

if TYPE_CHECKING:
    from normlens.results.cosine import Cosine
    from normlens.results.explanation import Explanation
    from normlens.results.maps import Maps


# SHA-256 of results files: of the header and of each array, in the file's metadata.
#
# The header's covers the metadata, the names, types and shapes of all arrays and their checksums,
# so that an array can be checked when it is first used, without the others.


#: Where the metadata hold the checksums.
KEY = "sha256"

Arrays = Mapping[str, NDArray[Any]]
#: Raises unless the array of this name is as it was written.
Check = Callable[[str], None]


def sealed(arrays: Arrays, metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a file with the checksums of its arrays and of its header."""
    each = {name: _of_array(arrays[name]) for name in sorted(arrays)}
    sums = {"header": _of_header(metadata, arrays, each), "arrays": each}
    return {**metadata, KEY: json.dumps(sums)}


def check_header(path: Path, metadata: Mapping[str, str], arrays: Arrays) -> Check:
    """Raise unless a file's header is as it was written; return what checks an array by its name.

    A ValueError or a LookupError says that the checksums themselves cannot be read.
    """
    sums = parse_json(metadata[KEY])
    each = dict(sums["arrays"])
    if set(each) != set(arrays):
        raise ValueError("its checksums are not those of its arrays")
    if _of_header(metadata, arrays, each) != sums["header"]:
        raise _changed(path, "its header")

    def check(name: str) -> None:
        if _of_array(arrays[name]) != each[name]:
            raise _changed(path, f"the array {name!r}")

    return check


def _changed(path: Path, what: str) -> MapsFileError:
    return MapsFileError(
        f"{str(path)!r} is damaged: {what} does not match its checksum; copy the file again or "
        "make it anew (normlens.open(…, verify=False) opens it as it is)"
    )


def _of_array(array: NDArray[Any]) -> str:
    # As bytes in one dimension, which arrays without entries have as well.
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _of_header(metadata: Mapping[str, str], arrays: Arrays, each: Mapping[str, str]) -> str:
    kinds = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
    rest = {key: value for key, value in metadata.items() if key != KEY}
    return hashlib.sha256(json.dumps([rest, kinds, each], sort_keys=True).encode()).hexdigest()


class CheckedOnUse(Mapping[str, NDArray[Any]]):
    """Arrays that stay in their file, each checked when it is first asked for."""

    def __init__(self, arrays: Arrays, check: Check, prefix: str):
        self._arrays = arrays
        self._check = check
        self._prefix = prefix  # of their names in the file
        self._checked: set[str] = set()

    def __getitem__(self, name: str) -> NDArray[Any]:
        array = self._arrays[name]
        if name not in self._checked:
            self._check(self._prefix + name)
            self._checked.add(name)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays  # Mapping's would check the array

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # to another process or in a copy: plain arrays

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all arrays, which needs none of their numbers."""
        return shapes_of(self._arrays)


def shapes_of(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    """The shape of each array; of arrays in a file without reading them."""
    if isinstance(arrays, CheckedOnUse):
        return arrays.shapes
    return {name: array.shape for name, array in arrays.items()}


# Maps on disk: one safetensors file, everything but the arrays as JSON in its header.
#
# The maps of an encoder–decoder are the decoder's; the encoder's stand in the same file, their
# arrays called ``encoder/…`` and their fields in a part of the header of their own.


MAPS_FORMAT = "normlens-maps"
MAPS_VERSION = 3
#: The encoder's part of a header, and what the names of its arrays begin with.
_ENCODER, OF_ENCODER = "encoder", "encoder/"
_NO_STACKS = "maps beside each other are those of an encoder and of a decoder"
#: Fields of a file that maps call otherwise.
_ATTRIBUTES = {"tokens": "raw_tokens"}


def saved_maps(maps: Maps) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the header of a file of maps."""
    fields, tensors = _fields_of(maps), _tensors_of(maps)
    header = {
        "format": MAPS_FORMAT,
        "version": str(MAPS_VERSION),
        "maps": json.dumps(fields, ensure_ascii=False),
    }
    if maps.encoder is not None:
        if (maps.encoder.stack, maps.stack) != STACKS:
            raise InputError(f"{_NO_STACKS}; provenance['stack'] says which one maps are")
        header[_ENCODER] = json.dumps(_fields_of(maps.encoder), ensure_ascii=False)
        of_encoder = _tensors_of(maps.encoder)
        tensors |= {f"{OF_ENCODER}{name}": array for name, array in of_encoder.items()}
    return tensors, header


def maps_parts(
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


def _fields_of(maps: Maps) -> dict[str, Any]:
    """Everything but the arrays, as a file calls it."""
    fields = _written(maps, FIELDS)
    if maps.coverage:
        fields["coverage"] = dict(maps.coverage)
    if maps.source_axis is not None:
        fields["sources"] = _written(maps.source_axis, AXIS)
    if maps.routing is not None:
        fields["routing"], _ = headers.parts_of(maps.routing)
    return fields | headers.saved_grid(maps.grid)


def _tensors_of(maps: Maps) -> dict[str, NDArray[Any]]:
    tensors = {
        f"{group}/{name}": np.ascontiguousarray(array)
        for group, arrays in maps.groups.items()
        for name, array in arrays.items()
    }
    tensors[ALLOWED] = _bytes(maps.allowed)
    if maps.same_token is not None:
        tensors[SAME_TOKEN] = _bytes(maps.same_token)
    if maps.routing is not None:
        tensors |= headers.parts_of(maps.routing)[1]
    return tensors | headers.saved_picture(maps.grid)


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
    check_maps_fields(meta)
    check_maps_arrays(meta, tensors)
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
        meta["routing"] = headers.routing_of(routing, tensors, tokens)
    meta["grid"] = headers.read_grid(meta, tensors)
    masks = {name: _truth(tensors[name]) for name in MASKS if name in tensors}
    return {**masks, **groups, **_as_maps_call_them(meta)}


def _bytes(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(mask, dtype=bool).view(np.uint8)


def _truth(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask from a file; no copy where its bytes are 0 and 1 already."""
    return mask.view(np.bool_) if mask.max(initial=0) <= 1 else mask.astype(bool)


# Explanations on disk: one safetensors file, everything but the arrays as JSON in its header.
#
# What explanations of one text share is written once. `normlens.results.headers` judges
# what is read.


ONE = "normlens-explanation"  # the format of a file with one explanation
SEVERAL = "normlens-explanations"  # and of one with those of each next token
EXPLANATION_VERSION = 1
_META = "explanation"  # where the header holds the fields

Saved = tuple[dict[str, NDArray[Any]], dict[str, str]]


# Writing -----------------------------------------------------------------------------------------


def saved_explanation(explanation: Explanation) -> Saved:
    """The arrays and the header of the file of one explanation."""
    meta = {"shared": _shared(explanation), "each": [_each(explanation)]}
    picture = headers.saved_picture(explanation.grid)
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
    version = str(EXPLANATION_VERSION)
    return {"format": kind, "version": version, _META: json.dumps(meta, ensure_ascii=False)}


def _shared(explanation: Explanation) -> dict[str, Any]:
    names = [name for name in SHARED if name not in ("tokens", "scopes")]
    fields = {name: getattr(explanation, name) for name in names}
    fields["text"] = list(fields["text"]) if isinstance(fields["text"], tuple) else fields["text"]
    scopes = [scope for scope in explanation.flows if scope]
    if explanation.has_two_sequences:
        fields |= {name: getattr(explanation, name) for name in OF_TWO}
    fields |= headers.saved_grid(explanation.grid)
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


def explanation_parts(
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
    check_explanation_fields(shared, fields_of(shared))
    check_axis(shared)
    headers.check_grid(shared, tensors)
    labels = {**_labels(shared), "grid": headers.read_grid(shared, tensors)}
    arrays: list[dict[str, NDArray[Any]]] = [{} for _ in each]
    for key, array in tensors.items():
        if key == headers.PICTURE:
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
    of_picture = headers.FIELD if headers.GRID in has else {}
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
    check_explanation_fields(fields, EACH)
    check_explanation_arrays(arrays, shared)
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


# Cosines on disk: one safetensors file, everything but the arrays as JSON in its header.


COSINE_FORMAT = "normlens-cosine"
COSINE_VERSION = 1
ARRAYS = ("matrix", "a_with_bias", "b_with_bias")
NUMBERS = ("value", "bias", "completeness")
TEXTS = ("text_a", "text_b")


def saved_cosine(cosine: Cosine) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the header of a cosine's file."""
    tensors = {name: np.ascontiguousarray(getattr(cosine, name)) for name in ARRAYS}
    meta = {name: getattr(cosine, name) for name in (*NUMBERS, *TEXTS, "provenance")}
    for name in ("a", "b"):
        axis = asdict(getattr(cosine, name))
        meta[name] = {"tokens": axis.pop("raw_tokens"), **axis}
    return tensors, {
        "format": COSINE_FORMAT,
        "kind": "cosine",
        "version": str(COSINE_VERSION),
        "cosine": json.dumps(meta, ensure_ascii=False),
    }


def cosine_parts(
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


# A safetensors file whose large arrays are written while they are computed, layer by layer.
#
# A safetensors file begins with a header that names every array, its place and its size. Here room
# is kept for it, the arrays follow as they come, and the header is written when all of them are
# there.


#: What safetensors calls the types of arrays.
TYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {kind: name for name, kind in TYPES.items()}
#: Bytes of the number at the beginning that says how long the header is.
SIZE = 8
#: Bytes that are moved at a time.
_MOVED = 1 << 24

#: Gives an array in the file by its name, shape and type, to be written to.
Place = Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]]


class _Region(NamedTuple):
    """Where the file has kept room for an array."""

    start: int  # behind the header
    size: int
    array: NDArray[Any]


class GrowingFile:
    """A file at `path`, with `room` bytes for what its header will say."""

    def __init__(self, path: str, room: int):
        self._path = path
        self._header = room + -room % 8  # arrays behind it lie where processors like them
        self._regions: dict[str, _Region] = {}
        self._end = 0  # of the arrays, behind the header

    def place(self, name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """An array of zeros in the file; what is written to it stands in the file."""
        start = SIZE + self._header + self._end
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        with open(self._path, "r+b") as file:
            file.truncate(start + size)
            if hasattr(os, "posix_fallocate") and size:
                # A full disk would otherwise end the process at the first write.
                os.posix_fallocate(file.fileno(), start, size)
        array = mapped(self._path, start, shape, kind, mode="r+")
        self._regions[name] = _Region(self._end, size, array)
        self._end += size
        return array

    def under(self, prefix: str) -> Place:
        """`place`, for names that begin with `prefix`."""

        def place(name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
            return self.place(prefix + name, shape, kind)

        return place

    def finish(self, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
        """Write the header and every array that has no place yet.

        An array may have fewer entries along its first axis than there was room for.
        """
        with open(self._path, "r+b") as file:
            places = dict(self._packed(tensors, file))
            file.seek(SIZE + self._header + self._end)
            for name, array in tensors.items():
                if name not in places:
                    places[name] = self._end, self._end + array.nbytes
                    file.write(np.ascontiguousarray(array).data)
                    self._end += array.nbytes
            file.truncate(SIZE + self._header + self._end)
            header = json.dumps(
                {"__metadata__": dict(metadata)}
                | {name: _entry(tensors[name], place) for name, place in places.items()},
                ensure_ascii=False,
            ).encode()
            if len(header) > self._header:
                raise OutputError(
                    f"the header of the maps takes {len(header)} bytes and has room for "
                    f"{self._header}; save the maps without `out` and report this, please"
                )
            file.seek(0)
            file.write(self._header.to_bytes(SIZE, "little"))
            file.write(header.ljust(self._header))

    def _packed(
        self, tensors: Mapping[str, NDArray[Any]], file: BinaryIO
    ) -> Iterator[tuple[str, tuple[int, int]]]:
        """Move arrays to where those before them end, and yield their first and last bytes."""
        end = 0
        moved = False
        for name, region in self._regions.items():
            if end != region.start and not moved:
                for each in self._regions.values():
                    _flush(each.array)
                moved = True
            size = tensors[name].nbytes
            if size > region.size:
                raise ValueError(f"{name!r} is larger than its place in the file")
            if end != region.start:
                self._move(file, region.start, end, size)
            yield name, (end, end + size)
            end += size
        self._end = end

    def _move(self, file: BinaryIO, start: int, end: int, size: int) -> None:
        """Move bytes towards the beginning, some at a time."""
        begin = SIZE + self._header
        for offset in range(0, size, _MOVED):
            file.seek(begin + start + offset)
            some = file.read(min(_MOVED, size - offset))
            file.seek(begin + end + offset)
            file.write(some)


def mapped(
    path: str | os.PathLike[str],
    start: int,
    shape: tuple[int, ...],
    kind: np.dtype[Any],
    mode: Any = "c",
) -> NDArray[Any]:
    """An array that stays in its file until it is read; with mode "c" it may be written to, which
    leaves the file as it is.
    """
    if 0 in shape:
        return np.zeros(shape, dtype=kind)  # nothing can be mapped
    return np.memmap(path, dtype=kind, mode=mode, offset=start, shape=shape).view(np.ndarray)


def _flush(array: NDArray[Any]) -> None:
    if isinstance(array.base, np.memmap):
        array.base.flush()


def _entry(array: NDArray[Any], place: tuple[int, int]) -> dict[str, Any]:
    return {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": place}


def mapped_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file that has been checked, each in the file until it is read."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(SIZE), "little")
        header = json.loads(file.read(size))
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start = SIZE + size + entry["data_offsets"][0]
            array = mapped(path, start, tuple(entry["shape"]), TYPES[entry["dtype"]])
            arrays[name] = array if array.flags.aligned else array.copy()
    return arrays
