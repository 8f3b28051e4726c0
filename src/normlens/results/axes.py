"""The axes of every array that maps hold, by name: the one legend for shapes above the algebra.

layer · head · target i (output, row) · source j (input, column) · d_model · special (dimension)

An array's layers are those that have what it shows. Sources are the targets' tokens, or others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Arrays by their axes.
LayerTargetSource: TypeAlias = NDArray[np.floating]
LayerHeadTargetSource: TypeAlias = NDArray[np.floating]
LayerTarget: TypeAlias = NDArray[np.floating]
PerLayer: TypeAlias = NDArray[np.floating]
TargetSource: TypeAlias = NDArray[np.floating]
Allowed: TypeAlias = NDArray[np.bool_]  # [layer, target, source]

Axes: TypeAlias = tuple[str, ...]

#: The groups of arrays that maps hold by scope.
BY_SCOPE: Mapping[str, Axes] = {
    "arrays": ("layer", "target", "source"),
    "mixing": ("layer", "target"),
    "heads": ("layer", "head", "target", "source"),
    "standard_error": ("layer", "target", "source"),
}
#: The group of the feed-forward block's statistics, by name.
STATISTICS: Mapping[str, Axes] = {
    "ff_output_norm": ("layer", "target"),
    "bypassed_norm": ("layer", "target"),
    "ff_input_mean_abs": ("layer", "d_model"),
    "ff_output_mean_abs": ("layer", "d_model"),
    "gamma": ("layer", "d_model"),
    "special_dimensions": ("layer", "special"),
    "ff_without_special": ("layer", "target", "source"),
}
#: The arrays of an explanation, by name.
EXPLANATION: Mapping[str, Axes] = {
    "nodes": ("layer", "source"),
    "components": ("layer", "component", "target"),
    "heads": ("layer", "head", "target"),
    "flow": ("layer", "target", "source"),
    "head_flow": ("layer", "head", "target", "source"),
    "cross_heads": ("layer", "cross_head", "target"),
}
#: Every group.
GROUPS = (*BY_SCOPE, "statistics")


def axes_of(group: str, name: str) -> Axes:
    """The axes of one array."""
    return STATISTICS[name] if group == "statistics" else BY_SCOPE[group]


def fits(shape: tuple[int, ...], axes: Axes, sizes: Mapping[str, int]) -> bool:
    """Whether a shape has these axes, and the sizes that are given of them."""
    return len(shape) == len(axes) and all(
        sizes.get(axis, length) == length for axis, length in zip(axes, shape, strict=True)
    )


def take(array: NDArray[Any], axes: Axes, indices: Mapping[str, NDArray[np.intp]]) -> NDArray[Any]:
    """The array with only the given places along each of the named axes that it has."""
    for position, axis in enumerate(axes):
        if axis in indices:
            array = np.take(array, indices[axis], axis=position)
    return array
