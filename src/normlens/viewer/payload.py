"""Maps as the bytes that the viewer reads: a JSON header, then compressed arrays.

The format is described in ``viewer/CONTRACT.md``. With `precision` 32 values are kept as float32.
With 16 or 8 the logarithm of each value is rounded to that many bits between the map's smallest and
largest value, so that the *relative* error is the same for small and large values: at most
``(max / min) ** (1 / 131066) − 1``, which is 0.007 % where values span four orders of magnitude.
Zero stays zero, and the order of values is kept except that close neighbours may become equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.plain_json import plain
from normlens.results.labelled import LabelledMaps
from normlens.results.rolled import rollout_words
from normlens.results.sequences import OWN_SEQUENCE
from normlens.viewer.container import Blobs, check_precision, joined
from normlens.viewer.map_extras import grid_field, routing_field
from normlens.viewer.shapes import items_of
from normlens.viewer.token_fields import source_fields, texts_of, token_fields

if TYPE_CHECKING:
    from normlens.results.maps import Maps

MEDIA_TYPE = "application/octet-stream"
FORMAT = "normlens-viewer"
FORMAT_VERSION = 2
BITS = (32, 16, 8)


def encode(
    maps: Maps | Sequence[Maps], *, precision: int = 16, left_out: Iterable[str] = ()
) -> bytes:
    """Encode one or several maps; `left_out` are sentences about what is missing."""
    check_precision(precision, BITS)
    listed_maps = as_list(maps)
    blobs = Blobs()
    items = [_item(one, blobs, precision, list(left_out)) for one in listed_maps]
    return joined(FORMAT, FORMAT_VERSION, items, blobs)


def as_list(maps: Maps | Sequence[Maps]) -> list[Maps]:
    """Make a list of one or several maps, each as the viewer can show it; none is an error.

    The viewer knows layers that are alike: maps whose layers differ become one item per kind of
    layer. An encoder's maps stay beside those of its decoder.
    """
    listed = [maps] if isinstance(maps, LabelledMaps) else list(maps)
    if not listed:
        raise InputError("there are no maps to show; give at least one")
    for one in listed:
        if not isinstance(one, LabelledMaps):
            raise InputError(f"the viewer shows Maps, not {type(one).__name__}")
        if not one.scopes or not one.tokens or not one.layers:
            raise InputError("these maps have no scope, layer or token; there is nothing to show")
    return [item for one in listed for item in items_of(one)]


def _item(maps: Maps, blobs: Blobs, precision: int, left_out: list[str]) -> dict[str, Any]:
    """The header of one stack's maps, with that of the encoder's maps beside them, if any."""
    encoder = None
    if maps.encoder is not None:
        encoder = _item(maps.encoder, blobs, precision, left_out)
    masks, allowed = _masks(maps.allowed, blobs)
    derived = _derived(maps)
    encoded = {
        scope: [
            _encode_map(array[k], maps.allowed[k], blobs, precision)
            for k in range(len(maps.layers))
        ]
        for scope, array in maps.arrays.items()
        if scope not in derived
    }
    error = max(_relative_error(blob) for rows in encoded.values() for blob in rows)
    if maps.heads:
        left_out = [*left_out, "Head-level maps are left out; the maps file has them."]
    if maps.standard_error:
        left_out = [*left_out, "Standard errors are left out; the maps file has them."]
    if (how := rollout_words(maps)) is not None:
        left_out = [*left_out, f"Norms of single layers are left out; values are a {how}."]
    completeness = float(maps.completeness)
    return {
        "model": str(maps.provenance.get("model", "model")),
        "text": texts_of(maps.text),
        "stack": maps.stack or (None if maps.encoder is None else OWN_SEQUENCE),
        **token_fields(maps.targets),
        "sources": None if maps.source_axis is None else source_fields(maps),
        "same_token": None if maps.same_token is None else _bits(maps.is_same_token, blobs),
        "layers": [int(layer) for layer in maps.layers],
        "scopes": maps.scopes,
        "completeness": completeness if math.isfinite(completeness) else None,
        "provenance": plain(maps.provenance),
        "masks": masks,
        "allowed": allowed,
        "maps": encoded,
        "derived": derived,
        "mixing": {
            scope: blobs.add(ratio.astype(np.float32), "f32")
            for scope, ratio in maps.mixing.items()
        },
        "precision": {"bits": precision, "relative_error": error},
        "left_out": left_out,
        "grid": grid_field(maps.grid, blobs),
        "routing": routing_field(maps.routing, blobs),
        "encoder": encoder,
    }


def _derived(maps: Maps) -> dict[str, str]:
    """Name scopes that need not be stored: ATTNRES-W is half of ATTN-W and half the identity."""
    if "ATTN-W" not in maps.arrays or "ATTNRES-W" not in maps.arrays:
        return {}
    expected = 0.5 * maps.arrays["ATTN-W"] + 0.5 * maps.is_same_token
    same = np.allclose(maps.arrays["ATTNRES-W"], expected, rtol=1e-5, atol=1e-7)
    return {"ATTNRES-W": "ATTN-W"} if same else {}


def _masks(allowed: NDArray[np.bool_], blobs: Blobs) -> tuple[list[Any], list[int]]:
    """Store each different mask once, and number each layer's mask."""
    masks: list[Any] = []
    number_of: dict[bytes, int] = {}
    numbers = []
    _, targets, sources = allowed.shape
    lower = np.tri(targets, dtype=bool) if targets == sources else None
    for mask in allowed:
        key = mask.tobytes()
        if key not in number_of:
            number_of[key] = len(masks)
            if mask.all():
                masks.append("all")
            elif lower is not None and np.array_equal(mask, lower):
                masks.append("lower")
            else:
                masks.append(_bits(mask, blobs))
        numbers.append(number_of[key])
    return masks, numbers


def _bits(mask: NDArray[np.bool_], blobs: Blobs) -> dict[str, Any]:
    return blobs.add(np.packbits(mask, bitorder="little"), "bits")


def _encode_map(
    array: NDArray[Any], allowed: NDArray[np.bool_], blobs: Blobs, precision: int
) -> dict[str, Any]:
    full = bool(np.any(array[~allowed] != 0))  # only in maps that a user made
    values = np.asarray(array if full else array[allowed], dtype=np.float64).reshape(-1)
    more: dict[str, Any] = {"full": True} if full else {}
    positive = values[np.isfinite(values) & (values > 0)]
    if precision == 32 or np.any(values < 0):
        return blobs.add(values.astype(np.float32), "f32", **more)
    top = 2**precision - 2
    low, high = (
        (math.log(positive.min()), math.log(positive.max())) if positive.size else (0.0, 0.0)
    )
    step = (high - low) / (top - 1)
    codes = np.zeros(values.shape, dtype=np.uint16 if precision == 16 else np.uint8)
    logs = np.log(values, out=np.full(values.shape, low), where=values > 0)
    scaled = np.rint((logs - low) / step) if step > 0 else np.zeros_like(logs)
    finite = np.isfinite(values)
    codes[finite & (values > 0)] = (1 + scaled[finite & (values > 0)]).astype(codes.dtype)
    codes[~finite] = top + 1
    return blobs.add(codes, f"log{precision}", low=low, step=step, **more)


def _relative_error(blob: Mapping[str, Any]) -> float:
    """Bound the rounding error: at most half a step of the logarithm."""
    return math.expm1(blob["step"] / 2) if "step" in blob else float(np.finfo(np.float32).eps) / 2
