"""Results of one sequence as they come in, layer by layer, and what they depend on."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normlens._version import __version__
from normlens.components import Layer
from normlens.decomposition.layer import FeedForwardStatistics, LayerMaps


@dataclass
class Collected:
    """One sequence's results, layer by layer, on the CPU and without padding."""

    arrays: dict[str, list[Any]] = field(default_factory=dict)
    mixing: dict[str, list[Any]] = field(default_factory=dict)
    heads: dict[str, list[Any]] = field(default_factory=dict)
    errors: dict[str, list[Any]] = field(default_factory=dict)
    statistics: dict[str, list[Any]] = field(default_factory=dict)
    allowed: list[Any] = field(default_factory=list)
    completeness: list[float] = field(default_factory=list)

    def add(self, result: LayerMaps, index: int, n: int, layer: Layer) -> None:
        for scope, norms in result.norms.items():
            self.arrays.setdefault(scope, []).append(_array(norms[index, :n, :n]))
        for scope, ratios in result.mixing.items():
            self.mixing.setdefault(scope, []).append(_array(ratios[index, :n]))
        for scope, maps in result.head_maps.items():
            self.heads.setdefault(scope, []).append(_array(maps[index, :, :n, :n]))
        for scope, errors in result.standard_error.items():
            self.errors.setdefault(scope, []).append(_array(errors[index, :n, :n]))
        if result.statistics is not None:
            for name, values in _statistics(result.statistics, index, n).items():
                self.statistics.setdefault(name, []).append(_array(values))
        self.allowed.append(layer.reach.mask(n).numpy())
        self.completeness.extend(result.completeness.values())


def _statistics(found: FeedForwardStatistics, index: int, n: int) -> dict[str, Tensor]:
    """One sequence's statistics of a layer, by the names that `Maps.statistics` uses."""
    output, entry = found.output[index, :n], found.input[index, :n]
    values = {
        "ff_output_norm": torch.linalg.vector_norm(output, dim=-1),
        "ff_output_mean_abs": output.abs().mean(0),
        "ff_input_mean_abs": entry.abs().mean(0),
    }
    if found.bypassed is not None:
        values["bypassed_norm"] = torch.linalg.vector_norm(found.bypassed[index, :n], dim=-1)
    if found.gamma is not None and found.special is not None and found.ordinary is not None:
        values |= {
            "gamma": found.gamma,
            "special_dimensions": found.special,
            "ff_without_special": found.ordinary[index, :n, :n],
        }
    return values


def _array(values: Tensor) -> np.ndarray:
    return values.cpu().numpy().copy()


def versions() -> dict[str, str]:
    """Versions of everything that a number may depend on."""
    import transformers

    return {
        "normlens": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
