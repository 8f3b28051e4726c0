"""Cosines of two texts as the bytes that the viewer reads; see ``viewer/CONTRACT.md``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError
from normlens.plain_json import plain
from normlens.viewer.container import Blobs, joined
from normlens.viewer.token_fields import token_fields

if TYPE_CHECKING:
    from normlens.results.cosine import Cosine

FORMAT = "normlens-viewer-cosines"
FORMAT_VERSION = 1


def encode_cosines(compared: Cosine | Sequence[Cosine]) -> bytes:
    """Encode one or several cosines; their arrays are kept in float32."""
    blobs = Blobs()
    items = [_item(pair, blobs) for pair in listed(compared)]
    return joined(FORMAT, FORMAT_VERSION, items, blobs)


def listed(compared: Cosine | Sequence[Cosine]) -> list[Cosine]:
    """Make a list of one or several cosines; none, or something else, is an error."""
    several = list(compared) if isinstance(compared, Sequence) else [compared]
    if not several:
        raise InputError("there is no cosine to show; give at least one")
    for pair in several:
        # Importing the class here would be a circle: cosines show themselves.
        if not hasattr(pair, "a_with_bias"):
            raise InputError(f"this page shows cosines, not {type(pair).__name__}")
    return several


def _item(pair: Cosine, blobs: Blobs) -> dict[str, Any]:
    return {
        "model": str(pair.provenance.get("model", "model")),
        "value": plain(pair.value),
        "completeness": plain(pair.completeness),
        "remainder": plain(dict(pair.remainder)),
        "provenance": plain(dict(pair.provenance)),
        "a": {"text": pair.text_a, **token_fields(pair.a)},
        "b": {"text": pair.text_b, **token_fields(pair.b)},
        "matrix": blobs.add_floats(pair.matrix),
        "a_with_bias": blobs.add_floats(pair.a_with_bias),
        "b_with_bias": blobs.add_floats(pair.b_with_bias),
        "bias": plain(pair.bias),
        "left_out": [],
    }
