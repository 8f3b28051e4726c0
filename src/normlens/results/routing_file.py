"""The routing of experts in a maps file: a field of the header, and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.results.header_fields import is_index, is_list
from normlens.results.routing import Routing

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
