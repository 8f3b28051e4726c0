"""Results of a batch as they come in, layer by layer, and what they depend on."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens._version import __version__
from normlens.analysis import mixing_ratio, special_dimensions
from normlens.analysis.device_ranks import spearman_matrices
from normlens.axes import axes_of
from normlens.checks import Checks
from normlens.components import Layer, Reach
from normlens.decomposition.results import FeedForwardStatistics, LayerMaps

#: Bytes of results that may stay on a device until the last layer is through.
HELD_ON_DEVICE = 2 << 30

CORRELATIONS = "correlations"

Key = tuple[str, str]  # group of results, name within it


class Collected:
    """A batch's results. They stay on their device until all layers are through, or it is full.

    Every number that is asked of a GPU makes it wait; here that happens once, at the end.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        scopes: Sequence[str],
        checks: Checks,
        arrays: bool = True,
        correlations: bool = False,
    ):
        self.checks = checks
        self.lengths = list(lengths)
        self.scopes = list(scopes)
        self.wanted = {"arrays": arrays, CORRELATIONS: correlations}
        self.reaches: list[Reach] = []
        self.precision: str | None = None
        self._errors: list[tuple[int, str, Tensor]] = []
        self._kernel_errors: list[tuple[int, str, Tensor]] = []
        self._pending: dict[Key, list[Tensor]] = {}
        self._held = 0
        self._done: dict[Key, list[NDArray[Any]]] = {}  # pieces, each (b, layer, …)

    def add(self, result: LayerMaps, index: int, layer: Layer) -> None:
        """Keep the results of layer `index`."""
        self.reaches.append(layer.reach)
        self.precision = result.precision or self.precision
        self._errors += [(index, scope, error) for scope, error in result.completeness.items()]
        for kind, error in (("sum", result.kernel_error), ("sample", result.sampled_error)):
            if error is not None:
                self._kernel_errors.append((index, kind, error))
        groups = {
            "arrays": result.norms if self.wanted["arrays"] else {},
            "mixing": {
                scope: mixing_ratio(others, result.own[scope])
                for scope, others in result.others.items()
            },
            "heads": result.head_maps,
            "standard_error": result.standard_error,
            "statistics": self._statistics(result.statistics, layer),
            CORRELATIONS: self._correlations(result, layer),
        }
        for group, values in groups.items():
            for name, tensor in values.items():
                self._pending.setdefault((group, name), []).append(tensor)
                self._held += tensor.nbytes if tensor.device.type != "cpu" else 0
        if self._held > HELD_ON_DEVICE:
            self._bring()

    def errors(self) -> list[tuple[int, str, float]]:
        """Every completeness error, with its layer and scope, in the order of the layers."""
        return _numbers(self._errors)

    def kernel_errors(self) -> list[tuple[int, str, float]]:
        """How far a kernel's parts miss their sum, and its norms a sample, layer by layer."""
        return _numbers(self._kernel_errors)

    def sequences(self) -> list[dict[str, dict[str, NDArray[Any]]]]:
        """Each sequence's results by group and name, without padding; the first axis is layers."""
        self._bring()
        found: list[dict[str, dict[str, NDArray[Any]]]] = [{} for _ in self.lengths]
        for (group, name), pieces in self._done.items():
            whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
            axes = _token_axes(group, name)
            for index, n in enumerate(self.lengths):
                place: tuple[Any, ...] = (index, ..., *([slice(n)] * axes))
                # a view would keep the whole batch alive
                array = np.ascontiguousarray(whole[place])
                own = array if len(self.lengths) == 1 or array.base is None else array.copy()
                found[index].setdefault(group, {})[name] = own
        self._done.clear()
        return found

    def allowed(self, n: int) -> NDArray[np.bool_]:
        """[layer, target, source], pairs that attention allows in a sequence of n tokens."""
        return _masks(tuple(self.reaches), n).copy()

    def _bring(self) -> None:
        """Move what has come in so far to the CPU."""
        for key in list(self._pending):
            stacked = torch.stack(self._pending.pop(key), dim=1)
            self._done.setdefault(key, []).append(stacked.cpu().numpy())
        self._held = 0

    def _correlations(self, result: LayerMaps, layer: Layer) -> dict[str, Tensor]:
        """Spearman's ρ of every two scopes, (b, scope, scope), ranked where the maps lie."""
        if not self.wanted[CORRELATIONS]:
            return {}
        maps = torch.stack([result.norms[scope] for scope in self.scopes], dim=1)
        n = maps.shape[-1]
        lengths = torch.tensor(self.lengths).to(maps.device, non_blocking=True)
        real = torch.arange(n, device=maps.device) < lengths[:, None]
        reach = torch.from_numpy(_mask(layer.reach, n)).to(maps.device, non_blocking=True)
        allowed = real[:, :, None] & real[:, None, :] & reach
        return {CORRELATIONS: spearman_matrices(maps, allowed)}

    def _statistics(self, found: FeedForwardStatistics | None, layer: Layer) -> dict[str, Tensor]:
        """The batch's statistics of a layer, by the names that `Maps.statistics` uses."""
        if found is None:
            return {}

        def mean_size(vectors: Tensor) -> Tensor:
            return torch.stack(
                [vectors[index, :n].abs().mean(0) for index, n in enumerate(self.lengths)]
            )

        values = {
            "ff_output_norm": torch.linalg.vector_norm(found.output, dim=-1),
            "ff_output_mean_abs": mean_size(found.output),
            "ff_input_mean_abs": mean_size(found.input),
        }
        if found.bypassed is not None:
            values["bypassed_norm"] = torch.linalg.vector_norm(found.bypassed, dim=-1)
        norm = layer.norm_behind_feed_forward
        if found.ordinary is not None and norm is not None and norm.gamma is not None:
            batch, gamma = len(self.lengths), norm.gamma.to(found.output.dtype)
            values |= {
                "gamma": gamma.expand(batch, -1),
                "special_dimensions": special_dimensions(gamma)[0].expand(batch, -1),
                "ff_without_special": found.ordinary,
            }
        return values


def _token_axes(group: str, name: str) -> int:
    """How many of an array's last axes run over tokens."""
    if group == CORRELATIONS:
        return 0
    return sum(axis in ("target", "source") for axis in axes_of(group, name))


def _numbers(found: list[tuple[int, str, Tensor]]) -> list[tuple[int, str, float]]:
    """The same with numbers for tensors, brought from their device in one go."""
    if not found:
        return []
    numbers = torch.stack([tensor for _, _, tensor in found]).tolist()
    named = zip(found, numbers, strict=True)
    return [(layer, scope, number) for (layer, scope, _), number in named]


@lru_cache(maxsize=256)
def _mask(reach: Reach, n: int) -> NDArray[np.bool_]:
    return reach.mask(n).numpy()


@lru_cache(maxsize=64)
def _masks(reaches: tuple[Reach, ...], n: int) -> NDArray[np.bool_]:
    return np.stack([_mask(reach, n) for reach in reaches])


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
