"""Results as the bytes that the viewer reads; the format is in ``viewer/CONTRACT.md``."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.results.axes import TokenAxis, plain
from normlens.results.rolled import rollout_words
from normlens.results.words import OWN_SEQUENCE, RES
from normlens.scopes import layers_in_words, thinned

if TYPE_CHECKING:
    from normlens.inputs.text import Text
    from normlens.results.axes import PatchGrid, Routing
    from normlens.results.explanation import Cosine, Explanation, Explanations
    from normlens.results.maps import Maps


# The container of the viewer's payloads: a JSON header, then compressed arrays.
#
# What the header says is up to the payload: maps, explanations or cosines.


MAGIC = b"NLVIEW01"
_LEVEL = 6
_SIGN = 1 << 15  # of a signed code; alone it stands for NaN


class Blobs:
    """Compressed arrays behind each other, each at a multiple of three bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, array: NDArray[Any], coding: str, **more: Any) -> dict[str, Any]:
        """Store an array; the header finds it by what is returned."""
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        planes = little.reshape(-1).view(np.uint8).reshape(-1, little.itemsize).T.tobytes()
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
        data = packer.compress(planes) + packer.flush()
        blob = {"at": self.size, "length": len(data), "coding": coding, **more}
        data += bytes(-len(data) % 3)
        self.parts.append(data)
        self.size += len(data)
        return blob

    def add_floats(self, array: NDArray[Any]) -> dict[str, Any]:
        """Store numbers as float32."""
        return self.add(np.asarray(array, dtype=np.float32), "f32")

    def add_signed(self, array: NDArray[Any], precision: int) -> dict[str, Any]:
        """Store numbers of both signs, as float32 or as a sign and a logarithm in 16 bits.

        The relative error is then at most 0.03 %; numbers below 2⁻³⁰ of the largest become 0.
        """
        if precision == 32:
            return self.add_floats(array)
        values = np.asarray(array, dtype=np.float64)
        sizes, finite = np.abs(values), np.isfinite(values)
        top = float(sizes[finite].max(initial=0.0))
        low = math.log(top) - 30 * math.log(2) if top > 0 else 0.0
        step = 30 * math.log(2) / (_SIGN - 2)
        kept = finite & (sizes > 0) & (sizes >= math.exp(low))
        codes = _log_codes(sizes, kept, low, step, np.uint16)
        codes[kept & (values < 0)] += _SIGN
        codes[~finite] = _SIGN
        return self.add(codes, "signed16", low=low, step=step)


def _log_codes(
    sizes: NDArray[Any], kept: NDArray[np.bool_], low: float, step: float, dtype: Any
) -> NDArray[Any]:
    """The logarithms of what is kept as whole steps above `low`, from 1; 0 for all others."""
    codes = np.zeros(sizes.shape, dtype)
    codes[kept] = 1 + (np.rint((np.log(sizes[kept]) - low) / step) if step > 0 else 0)
    return codes


def joined(
    format: str, version: int, several: Iterable[Any], item: Callable[[Any, Blobs], dict[str, Any]]
) -> bytes:
    """Join the items of a header, which store their arrays, and the arrays into one payload."""
    blobs = Blobs()
    items = [item(one, blobs) for one in several]
    facts = {"format": format, "version": version, "items": items}
    header = json.dumps(facts, allow_nan=False, separators=(",", ":")).encode("ascii")
    start = len(MAGIC) + 4 + len(header)
    header += b" " * (-start % 3)
    return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, *blobs.parts])


def check_precision(precision: int, bits: Sequence[int]) -> None:
    """Raise unless values can be kept in so many bits."""
    if precision not in bits:
        choices = ", ".join(map(str, bits))
        raise InputError(f"precision is a number of bits, one of {choices}, not {precision!r}")


#: What results of each kind have, and no others. Importing their classes would be a circle:
#: results show themselves.
_OWN = {"maps": "arrays", "explanations": "contributions", "cosines": "a_with_bias"}


def listed(given: Any, kind: str) -> list[Any]:
    """Make a list of one or several results of a kind; another kind is an error."""
    several = list(given) if isinstance(given, Sequence) else [given]
    if not several:
        raise InputError(f"there are no {kind} to show; give at least one")
    for result in several:
        if not hasattr(result, _OWN[kind]):
            raise InputError(f"this page shows {kind}, not {type(result).__name__}")
    return several


# Tokens and texts as the headers of payloads name them.


def token_fields(axis: TokenAxis) -> dict[str, Any]:
    """The tokens along an axis, as the tokenizer writes them and as people read them."""
    return {
        "tokens": list(axis.raw_tokens),
        "labels": axis.tokens,
        "special": [bool(flag) for flag in axis.special] or [False] * len(axis),
        "words": axis.token_words,
        "word_labels": list(axis.word_labels),
    }


def source_fields(maps: Maps) -> dict[str, Any]:
    """The tokens of the columns where they are other tokens than those of the rows.

    ``held`` are the sequences that each scope has parts of.
    """
    sequences = np.array(maps.source_sequences)
    names = list(dict.fromkeys(maps.source_sequences))
    pairs = {scope: np.asarray(maps.pairs_of(scope)).any((0, 1)) for scope in maps.scopes}
    return {
        **token_fields(maps.sources),
        "sequences": maps.source_sequences,
        "held": {
            scope: [name for name in names if np.any(columns & (sequences == name))]
            for scope, columns in pairs.items()
        },
    }


def texts_of(text: Text | None) -> list[str] | None:
    """One text, or the two of a pair, in a list."""
    if text is None:
        return None
    return [text] if isinstance(text, str) else list(text)


# One map as a blob: the pairs that attention allows, as float32 or as rounded logarithms.


#: Of single heads in 8 bits, what is below this share of a map's largest value becomes 0: else a
#: few weights near 0 would cost all others their digits.
_SMALLEST = 2.0**-20


def encode_map(
    array: NDArray[Any],
    allowed: NDArray[np.bool_],
    blobs: Blobs,
    precision: int,
    smallest: float = 0.0,
) -> dict[str, Any]:
    """Store a map (i, j); what is below this share of its largest value becomes 0."""
    full = bool(np.any(array[~allowed] != 0))  # only in maps that a user made
    values = np.array(array if full else array[allowed], dtype=np.float64).reshape(-1)
    finite = np.isfinite(values)
    values[np.abs(values) < smallest * values[finite].max(initial=0.0)] = 0.0
    more: dict[str, Any] = {"full": True} if full else {}
    if precision == 32 or np.any(values < 0):
        return blobs.add(values.astype(np.float32), "f32", **more)
    top, positive = 2**precision - 2, finite & (values > 0)
    ends = values[positive] if positive.any() else np.ones(1)
    low, high = math.log(ends.min()), math.log(ends.max())
    step = (high - low) / (top - 1)
    codes = _log_codes(values, positive, low, step, np.uint16 if precision == 16 else np.uint8)
    codes[~finite] = top + 1
    return blobs.add(codes, f"log{precision}", low=low, step=step, **more)


def relative_error(blob: Mapping[str, Any]) -> float:
    """Bound the rounding error: at most half a step of the logarithm."""
    return math.expm1(blob["step"] / 2) if "step" in blob else float(np.finfo(np.float32).eps) / 2


# What some maps have beside their numbers: a picture cut into patches, the routing of experts.


def grid_field(grid: PatchGrid | None, blobs: Blobs) -> dict[str, Any] | None:
    """Which tokens are patches, and the picture as bytes, which needs no library for images."""
    if grid is None:
        return None
    picture = None
    if grid.picture is not None:
        height, width, _ = grid.picture.shape
        pixels = blobs.add(grid.picture, "bytes")
        picture = {"height": height, "width": width, "pixels": pixels}
    return {"rows": grid.rows, "columns": grid.columns, "first": grid.first, "picture": picture}


def routing_field(routing: Routing | None, blobs: Blobs) -> dict[str, Any] | None:
    """The experts that each token used, and their weights, in the layers that have experts."""
    if routing is None:
        return None
    return {
        "layers": plain(routing.layers),
        "count": plain(routing.count),
        "places": routing.experts.shape[-1],
        "experts": blobs.add_floats(routing.experts),  # numbers that float32 holds exactly
        "weights": blobs.add_floats(routing.weights),
        "shared": None if routing.shared is None else blobs.add_floats(routing.shared),
    }


# Maps as the viewer's items: layers that are alike, a decoder's with its encoder's.


def items_of(maps: Maps) -> list[Maps]:
    """The same maps, or one for each kind of layer where layers have different scopes.

    An encoder's maps stay beside the decoder's; kinds of its layers that the decoder has no
    counterpart for stand alone.
    """
    if maps.encoder is None:
        return of_like_layers(maps)
    both = zip_longest(of_like_layers(maps.decoder), of_like_layers(maps.encoder))
    return [other if own is None else replace(own, encoder=other) for own, other in both]


def of_like_layers(maps: Maps) -> list[Maps]:
    """The same maps, or one for each kind of layer, which its model's name then tells."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for layer in maps.layers:
        scopes = tuple(scope for scope in maps.scopes if layer in maps.covered("arrays", scope))
        if scopes:  # a layer may have head-level maps alone
            kinds.setdefault(scopes, []).append(layer)
    if set(kinds) == {tuple(maps.scopes)}:
        return [maps]
    items = []
    for scopes, layers in kinds.items():
        model = f"{maps.provenance.get('model', 'model')} ({layers_in_words(layers)})"
        provenance = {**maps.provenance, "model": model}
        items.append(replace(maps.choose(layers, scopes), provenance=provenance))
    return items


# Maps as the bytes that the viewer reads: a JSON header, then compressed arrays.
#
# The format is described in ``viewer/CONTRACT.md``. With `precision` 32 values are kept as
# float32. With 16 or 8 the logarithm of each value is rounded to that many bits between the map's
# smallest and largest value, so that the *relative* error is the same for small and large values:
# at most ``(max / min) ** (1 / 131066) − 1``, which is 0.007 % where values span four orders of
# magnitude. Zero stays zero, and the order of values is kept except that close neighbours may
# become equal. Maps of single heads, of which there are many, may have fewer bits than the others.


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
    bits = precision, precision if head_precision is None else head_precision
    return encode_items(as_list(maps), bits, left_out)


def encode_items(
    several: Sequence[Maps],
    bits: tuple[int, int],
    left_out: Iterable[str] = (),
    head_layers: int | None = None,
) -> bytes:
    """Encode items of the viewer, with the single heads of at most `head_layers` of their layers.

    `bits` are those of maps and of single heads.
    """
    for each in bits:
        check_precision(each, (32, 16, 8))
    item = partial(_item, bits=bits, left_out=list(left_out), head_layers=head_layers)
    return joined("normlens-viewer", 3, several, item)


def as_list(maps: Maps | Sequence[Maps]) -> list[Maps]:
    """Make a list of one or several maps, each as the viewer can show it; none is an error.

    The viewer knows layers that are alike: maps whose layers differ become one item per kind of
    layer. An encoder's maps stay beside those of its decoder.
    """
    several = listed(maps, "maps")
    for one in several:
        if not one.scopes or not one.tokens or not one.layers:
            raise InputError("these maps have no scope, layer or token; there is nothing to show")
    return [item for one in several for item in items_of(one)]


def _item(
    maps: Maps, blobs: Blobs, bits: tuple[int, int], left_out: list[str], head_layers: int | None
) -> dict[str, Any]:
    """The header of one stack's maps, with that of the encoder's maps beside them, if any."""
    encoder = None
    if maps.encoder is not None:
        encoder = _item(maps.encoder, blobs, bits, left_out, head_layers)
    masks, mask_of_layer = _masks(maps.allowed, blobs)
    derived = _derived(maps)
    encoded = {
        scope: [
            encode_map(layer, allowed, blobs, bits[0])
            for layer, allowed in zip(array, maps.allowed, strict=True)
        ]
        for scope, array in maps.arrays.items()
        if scope not in derived
    }
    heads = _heads(maps, blobs, bits[1], head_layers)
    of_heads = (blob for layers in heads.values() for row in layers for blob in row or [])
    if maps.standard_error:
        left_out = [*left_out, "Standard errors are left out; the maps file has them."]
    if (how := rollout_words(maps)) is not None:
        left_out = [*left_out, f"Norms of single layers are left out; values are a {how}."]
    return {
        "model": str(maps.provenance.get("model", "model")),
        "text": texts_of(maps.text),
        "stack": maps.stack or (None if maps.encoder is None else OWN_SEQUENCE),
        **token_fields(maps.targets),
        "sources": None if maps.source_axis is None else source_fields(maps),
        "same_token": None if maps.same_token is None else _bits(maps.is_same_token, blobs),
        "layers": plain(maps.layers),
        "scopes": maps.scopes,
        "completeness": plain(float(maps.completeness)),
        "provenance": plain(maps.provenance),
        "masks": masks,
        "allowed": mask_of_layer,
        "maps": encoded,
        "derived": derived,
        "mixing": {scope: blobs.add_floats(ratio) for scope, ratio in maps.mixing.items()},
        "heads": heads,
        "precision": {
            "bits": bits[0],
            "relative_error": max(map(relative_error, chain(*encoded.values()))),
            "head_bits": bits[1],
            "head_relative_error": max(map(relative_error, of_heads), default=0.0),
        },
        "left_out": left_out,
        "grid": grid_field(maps.grid, blobs),
        "routing": routing_field(maps.routing, blobs),
        "encoder": encoder,
    }


def _heads(
    maps: Maps, blobs: Blobs, precision: int, head_layers: int | None
) -> dict[str, list[Any]]:
    """The maps of single heads by scope, layer and head; None for layers that have none."""
    share = _SMALLEST if precision == 8 else 0.0
    shown = maps.layers if head_layers is None else thinned(maps.layers, head_layers)
    heads = {}
    for scope, array in maps.heads.items():  # (layer, h, i, j)
        by_layer = dict(zip(maps.covered("heads", scope), array, strict=True))
        layers = [
            [encode_map(head, allowed, blobs, precision, share) for head in by_layer[layer]]
            if layer in by_layer and layer in shown
            else None
            for layer, allowed in zip(maps.layers, maps.allowed, strict=True)
        ]
        if any(layers):
            heads[scope] = layers
    return heads


def _derived(maps: Maps) -> dict[str, str]:
    """Name scopes that need not be stored: ATTNRES-W is half of ATTN-W and half the identity."""
    if "ATTN-W" not in maps.arrays or "ATTNRES-W" not in maps.arrays:
        return {}
    expected = 0.5 * maps.arrays["ATTN-W"] + 0.5 * maps.is_same_token
    same = np.allclose(maps.arrays["ATTNRES-W"], expected, rtol=1e-5, atol=1e-7)
    return {"ATTNRES-W": "ATTN-W"} if same else {}


def _masks(allowed: NDArray[np.bool_], blobs: Blobs) -> tuple[list[Any], list[int]]:
    """Store each different mask once, and number each layer's mask."""
    keys = [mask.tobytes() for mask in allowed]
    different = dict(zip(keys, allowed, strict=True))
    masks = [
        "all"
        if mask.all()
        else "lower"
        if np.array_equal(mask, np.tri(len(mask), dtype=bool))
        else _bits(mask, blobs)
        for mask in different.values()
    ]
    return masks, [list(different).index(key) for key in keys]


def _bits(mask: NDArray[np.bool_], blobs: Blobs) -> dict[str, Any]:
    return blobs.add(np.packbits(mask, bitorder="little"), "bits")


# Explanations as the bytes that the viewer reads; the format is in ``viewer/CONTRACT.md``.


#: The flow of a whole layer, among the flows of an explanation.
WHOLE = ""

#: Fields of an explanation that the header holds as they are.
_SAID = (  # noqa: SIM905, which would write a line for each
    "task question value remainder target target_value probability contrast contrast_value "
    "contrast_probability layer completeness biases"
).split()


def encode_explanations(
    explained: Explanation | Explanations | Sequence[Explanation],
    *,
    precision: int = 16,
    flow: bool = True,
    left_out: Iterable[str] = (),
) -> bytes:
    """Encode one or several explanations.

    Flow maps, the bulk, are kept in `precision` bits (see `Blobs.add_signed`), other arrays in
    float32. Without `flow` there are none. `left_out` are sentences about what is missing.
    """
    check_precision(precision, (32, 16))
    item = partial(_explanation_item, precision=precision, flow=flow, left_out=list(left_out))
    several = listed(explained, "explanations")
    return joined("normlens-viewer-explanations", 1, several, item)


def flow_bytes(several: Sequence[Explanation]) -> int:
    """How many bytes the flow maps of explanations are in float32."""
    return sum(4 * why.flows[WHOLE].size for why in several if WHOLE in why.flows)


def _explanation_item(
    why: Explanation, blobs: Blobs, precision: int, flow: bool, left_out: list[str]
) -> dict[str, Any]:
    end = why.seen  # the target's tokens behind the prefix carry nothing
    blocks = [place for place, name in enumerate(why.component_names) if name != RES]
    layers, heads = why.heads.shape[:2]
    sequences = None
    if why.has_two_sequences:
        sequences = {
            "source_tokens": why.encoder_tokens,
            "encoder_layers": why.encoder_layers,
            "shares": plain(asdict(why.shares)),
        }
    arrays = {
        "nodes": why.nodes,
        "components": why.components[:, blocks],
        "heads": why.heads,
        "cross_heads": why.cross_heads,
    }
    whole = why.flows.get(WHOLE) if flow else None
    missing = {
        "This explanation was made without flow maps, so the way through the layers is not "
        "shown; ask for flow=True.": WHOLE not in why.flows,
        "Flow maps behind scopes are left out.": bool(set(why.flows) - {WHOLE}),
        "Flow maps by head are left out.": why.head_flow is not None,
    }
    return {
        "model": str(why.provenance.get("model", "model")),
        "text": texts_of(why.text),
        **token_fields(why.axis.take(range(end))),
        **{name: plain(getattr(why, name)) for name in _SAID},
        "position": None if len(why.answer_ids or ()) > 1 else why.read_at,  # an answer: several
        "sequences": sequences,
        "layers": layers,
        "heads_per_layer": heads,
        "provenance": plain(why.provenance),
        "component_names": [why.component_names[place] for place in blocks],
        **{
            name: None if array is None else blobs.add_floats(array[..., :end])
            for name, array in arrays.items()
        },
        "flow": None
        if whole is None
        else [blobs.add_signed(part[:end, :end], precision) for part in whole],
        "grid": grid_field(why.grid, blobs),
        "precision": {"bits": precision},
        "left_out": [*left_out, *(sentence for sentence, said in missing.items() if said)],
    }


# Cosines of two texts as the bytes that the viewer reads; see ``viewer/CONTRACT.md``.


def encode_cosines(compared: Cosine | Sequence[Cosine]) -> bytes:
    """Encode one or several cosines; their arrays are kept in float32."""
    return joined("normlens-viewer-cosines", 1, listed(compared, "cosines"), _cosine_item)


def _cosine_item(pair: Cosine, blobs: Blobs) -> dict[str, Any]:
    said = ("value", "completeness", "remainder", "provenance")
    arrays = ("matrix", "a_with_bias", "b_with_bias")
    return {
        "model": str(pair.provenance.get("model", "model")),
        **{name: plain(getattr(pair, name)) for name in said},
        "a": {"text": pair.text_a, **token_fields(pair.a)},
        "b": {"text": pair.text_b, **token_fields(pair.b)},
        **{name: blobs.add_floats(getattr(pair, name)) for name in arrays},
        "bias": plain(pair.bias),
        "left_out": [],
    }
