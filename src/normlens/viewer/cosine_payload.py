"""Cosines of two texts as the bytes that the viewer reads; see ``viewer/CONTRACT.md``.

A cosine is anything with the fields of `CosineParts`; nothing here needs to know how it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.plain_json import plain
from normlens.tokens import TokenAxis
from normlens.viewer.container import Blobs, joined
from normlens.viewer.token_fields import token_fields

FORMAT = "normlens-viewer-cosines"
FORMAT_VERSION = 1


@runtime_checkable
class CosineParts(Protocol):
    """The cosine of two texts' vectors, shared out among pairs of their tokens.

    ``matrix.sum() + a_with_bias.sum() + b_with_bias.sum() + bias == value``.
    """

    @property
    def value(self) -> float: ...
    @property
    def matrix(self) -> NDArray[np.float64]: ...  # [token of A, token of B]
    @property
    def a_with_bias(self) -> NDArray[np.float64]: ...  # [token of A], with the bias of B
    @property
    def b_with_bias(self) -> NDArray[np.float64]: ...  # [token of B], with the bias of A
    @property
    def bias(self) -> float: ...
    @property
    def remainder(self) -> Mapping[str, float]: ...  # what no pair of tokens owns, by its parts
    @property
    def a(self) -> TokenAxis: ...  # the first text's tokens
    @property
    def b(self) -> TokenAxis: ...
    @property
    def text_a(self) -> str | None: ...
    @property
    def text_b(self) -> str | None: ...
    @property
    def completeness(self) -> float: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...


def encode_cosines(compared: CosineParts | Sequence[CosineParts]) -> bytes:
    """Encode one or several cosines; their arrays are kept in float32."""
    blobs = Blobs()
    items = [_item(pair, blobs) for pair in listed(compared)]
    return joined(FORMAT, FORMAT_VERSION, items, blobs)


def listed(compared: CosineParts | Sequence[CosineParts]) -> list[CosineParts]:
    """Make a list of one or several cosines; none, or something else, is an error."""
    several = [compared] if isinstance(compared, CosineParts) else list(compared)
    if not several:
        raise InputError("there is no cosine to show; give at least one")
    for pair in several:
        if not isinstance(pair, CosineParts):
            raise InputError(f"this page shows cosines, not {type(pair).__name__}")
    return several


def _item(pair: CosineParts, blobs: Blobs) -> dict[str, Any]:
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
