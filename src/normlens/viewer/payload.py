"""Maps as the bytes that the viewer reads: a JSON header, then compressed arrays.

The format is described in ``viewer/CONTRACT.md``. With `precision` 32 values are kept as float32.
With 16 or 8 the logarithm of each value is rounded to that many bits between the map's smallest and
largest value, so that the *relative* error is the same for small and large values: at most
``(max / min) ** (1 / 131066) − 1``, which is 0.007 % where values span four orders of magnitude.
Zero stays zero, and the order of values is kept except that close neighbours may become equal.
Maps of single heads, of which there are many, may have fewer bits than the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.plain_json import plain
from normlens.results.labelled import LabelledMaps
from normlens.results.rolled import rollout_words
from normlens.results.sequences import OWN_SEQUENCE
from normlens.viewer.container import Blobs, check_precision, joined
from normlens.viewer.map_coding import encode_head, encode_map, relative_error
from normlens.viewer.map_extras import grid_field, routing_field
from normlens.viewer.shapes import items_of
from normlens.viewer.token_fields import source_fields, texts_of, token_fields

if TYPE_CHECKING:
    from normlens.results.maps import Maps

FORMAT = "normlens-viewer"
FORMAT_VERSION = 3
BITS = (32, 16, 8)


class Bits(NamedTuple):
    """Bits per value."""

    maps: int
    heads: int


def encode(
    maps: Maps | Sequence[Maps],
    *,
    precision: int = 16,
    head_precision: int | None = None,
    left_out: Iterable[str] = (),
) -> bytes:
    """Encode one or several maps; `left_out` are sentences about what is missing.

    `head_precision` is that of single heads; None: that of the other maps.
    """
    bits = Bits(precision, precision if head_precision is None else head_precision)
    for each in bits:
        check_precision(each, BITS)
    listed_maps = as_list(maps)
    blobs = Blobs()
    items = [_item(one, blobs, bits, list(left_out)) for one in listed_maps]
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


def _item(maps: Maps, blobs: Blobs, bits: Bits, left_out: list[str]) -> dict[str, Any]:
    """The header of one stack's maps, with that of the encoder's maps beside them, if any."""
    encoder = None
    if maps.encoder is not None:
        encoder = _item(maps.encoder, blobs, bits, left_out)
    masks, allowed = _masks(maps.allowed, blobs)
    derived = _derived(maps)
    encoded = {
        scope: [
            encode_map(array[k], maps.allowed[k], blobs, bits.maps) for k in range(len(maps.layers))
        ]
        for scope, array in maps.arrays.items()
        if scope not in derived
    }
    error = max(relative_error(blob) for rows in encoded.values() for blob in rows)
    heads = _heads(maps, blobs, bits.heads)
    head_errors = [
        relative_error(blob) for rows in heads.values() for row in rows for blob in row or []
    ]
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
        "heads": heads,
        "precision": {
            "bits": bits.maps,
            "relative_error": error,
            "head_bits": bits.heads,
            "head_relative_error": max(head_errors, default=0.0),
        },
        "left_out": left_out,
        "grid": grid_field(maps.grid, blobs),
        "routing": routing_field(maps.routing, blobs),
        "encoder": encoder,
    }


def _heads(maps: Maps, blobs: Blobs, precision: int) -> dict[str, list[Any]]:
    """The maps of single heads by scope, layer and head; None for layers that have none."""

    def of_layer(scope: str, place: int) -> list[dict[str, Any]] | None:
        covered = maps.covered("heads", scope)
        if maps.layers[place] not in covered:
            return None
        every = maps.heads[scope][covered.index(maps.layers[place])]  # (h, i, j)
        return [encode_head(head, maps.allowed[place], blobs, precision) for head in every]

    places = range(len(maps.layers))
    return {scope: [of_layer(scope, place) for place in places] for scope in maps.heads}


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
