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
from normlens.analysing.columns import CORRELATIONS, ROUTING, Columns, reads_others
from normlens.analysing.correlations import correlations_of
from normlens.analysis import mixing_ratio, special_dimensions
from normlens.components import Layer, Reach
from normlens.decomposition.results import FeedForwardStatistics, LayerMaps
from normlens.errors import UnsupportedModelError
from normlens.results.labelled import Correlations
from normlens.tracing.checks import Checks

#: Bytes of results that may stay on a device until the last layer is through.
HELD_ON_DEVICE = 2 << 30

Key = tuple[str, str]  # group of results, name within it


class Collected:
    """A batch's results. They stay on their device until all layers are through, or it is full.

    Every number that is asked of a GPU makes it wait; here that happens once, at the end.
    """

    def __init__(
        self,
        columns: Columns,
        scopes: Sequence[str],
        checks: Checks,
        arrays: bool = True,
        correlations: bool = False,
    ):
        self.checks = checks
        self.columns = columns
        self.lengths = columns.lengths
        self.scopes = list(scopes)
        self.wanted = {"arrays": arrays, CORRELATIONS: correlations}
        self.precision: str | None = None
        self.experts = 0  # of a layer that has some
        #: The layers of each result: those that have what it shows.
        self.covered: dict[Key, list[int]] = {}
        self._reaches: dict[int, tuple[Reach, bool]] = {}  # and whether it reads other tokens
        self._errors: list[tuple[int, str, Tensor]] = []
        self._kernel_errors: list[tuple[int, str, Tensor]] = []
        self._pending: dict[Key, list[Tensor]] = {}
        self._held = 0
        self._done: dict[Key, list[NDArray[Any]]] = {}  # pieces, each (b, layer, …)

    def add(self, result: LayerMaps, index: int, layer: Layer) -> None:
        """Keep the results of layer `index`."""
        self._reaches[index] = layer.reach, reads_others(layer)
        # Layers of experts have no kernels; the precision of the other layers' is what matters.
        if result.kernel_error is not None or not self._kernel_errors:
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
                padded = self.columns.padded(tensor, group, name, layer)
                self._keep((group, name), padded, index)
        self._keep_routing(index, layer)
        if self._held > HELD_ON_DEVICE:
            self._bring()

    def _keep_routing(self, index: int, layer: Layer) -> None:
        """Keep the experts that the tokens of a layer used, if it was given with them."""
        experts = layer.experts
        if experts is None or experts.routing is None:
            return
        routing = experts.routing
        dtype = torch.promote_types(routing.weights.dtype, torch.float32)
        self.experts = len(experts.members)
        self._keep((ROUTING, "experts"), routing.experts, index)
        self._keep((ROUTING, "weights"), routing.weights.to(dtype), index)
        if experts.shared is not None:
            shared = torch.ones_like(routing.weights[..., 0])
            shared = shared if routing.shared is None else routing.shared
            self._keep((ROUTING, "shared"), shared.to(dtype), index)

    def _keep(self, key: Key, tensor: Tensor, index: int) -> None:
        pieces = self._pending.setdefault(key, [])
        if pieces and pieces[0].shape != tensor.shape:
            first = self.covered[key][-1]
            raise UnsupportedModelError(
                f"{key[0]} of {key[1]} have another shape in layer {index} "
                f"{tuple(tensor.shape[1:])} than in layer {first} {tuple(pieces[0].shape[1:])}; "
                "analyse such layers one by one (`layers`)"
            )
        pieces.append(tensor)
        self.covered.setdefault(key, []).append(index)
        self._held += tensor.nbytes if tensor.device.type != "cpu" else 0

    @property
    def layers(self) -> list[int]:
        """The layers that have any of the results."""
        having = {
            index
            for (group, _), layers in self.covered.items()
            if group != ROUTING
            for index in layers
        }
        return [index for index in self._reaches if index in having]

    def coverage(self) -> dict[str, list[int]]:
        """The layers of every array that covers only some of them, as `Maps.coverage` has it."""
        return {
            f"{group}/{name}": layers
            for (group, name), layers in self.covered.items()
            if group not in (CORRELATIONS, ROUTING) and layers != self.layers
        }

    def errors(self) -> list[tuple[int, str, float]]:
        """Every completeness error, with its layer and scope, in the order of the layers."""
        return _numbers(self._errors)

    def kernel_errors(self) -> list[tuple[int, str, float]]:
        """How far a kernel's parts miss their sum, and its norms a sample, layer by layer."""
        return _numbers(self._kernel_errors)

    def sequences(self) -> list[dict[str, dict[str, NDArray[Any]]]]:
        """Each sequence's results by group and name, without padding; the first axis is layers."""
        self._bring()
        results: list[dict[str, dict[str, NDArray[Any]]]] = [{} for _ in self.lengths]
        for (group, name), pieces in self._done.items():
            whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
            for index in range(len(self.lengths)):
                # a view would keep the whole batch alive
                array = np.ascontiguousarray(self.columns.real(whole[index], group, name, index))
                alone = array if len(self.lengths) == 1 or array.base is None else array.copy()
                results[index].setdefault(group, {})[name] = alone
        self._done.clear()
        return results

    def correlations(self, rho: NDArray[Any] | None) -> Correlations | None:
        """Spearman's ρ of one sequence with an entry for each layer, NaN where there is none."""
        if rho is None:
            return None
        covered = self.covered[CORRELATIONS, CORRELATIONS]
        whole = rho
        if covered != self.layers:
            whole = np.full((len(self.layers), *rho.shape[1:]), np.nan)
            whole[[self.layers.index(layer) for layer in covered]] = rho
        return Correlations(self.scopes, whole)

    def allowed(self, index: int) -> NDArray[np.bool_]:
        """[layer, target, source], pairs that attention allows in one of the sequences."""
        reaches = [self._reaches[layer] for layer in self.layers]
        masks = _masks(tuple(reach for reach, _ in reaches), self.lengths[index])
        others = self.columns.others[index] if self.columns.width else 0
        if not others:
            return masks.copy()
        seen = np.array([reads for _, reads in reaches])[:, None, None]
        return np.concatenate([np.broadcast_to(seen, (*masks.shape[:2], others)), masks], axis=2)

    def _bring(self) -> None:
        """Move what has come in so far to the CPU."""
        for key in list(self._pending):
            stacked = torch.stack(self._pending.pop(key), dim=1)
            self._done.setdefault(key, []).append(stacked.cpu().numpy())
        self._held = 0

    def _correlations(self, result: LayerMaps, layer: Layer) -> dict[str, Tensor]:
        """Spearman's ρ of every two scopes, (b, scope, scope), ranked where the maps lie."""
        here = [place for place, scope in enumerate(self.scopes) if scope in result.norms]
        if not self.wanted[CORRELATIONS] or not here:
            return {}
        norms = {self.scopes[place]: result.norms[self.scopes[place]] for place in here}
        maps = torch.stack(
            [self.columns.padded(norms[scope], "arrays", scope, layer) for scope in norms], dim=1
        )
        n, device = maps.shape[-2], maps.device
        lengths = torch.tensor(self.lengths).to(device, non_blocking=True)
        real = torch.arange(n, device=device) < lengths[:, None]
        reach = torch.from_numpy(_mask(layer.reach, n)).to(device, non_blocking=True)
        allowed = real[:, None, :] & reach  # (b, i, j)
        width = self.columns.width
        if width:
            others = self.columns.are_real(device)[:, None].expand(-1, n, -1)
            allowed = torch.cat([others & reads_others(layer), allowed], dim=-1)
        rho = correlations_of(maps, list(norms), real[:, :, None] & allowed, width)
        if len(here) == len(self.scopes):
            return {CORRELATIONS: rho}
        size = len(self.scopes)
        whole = rho.new_full((len(rho), size, size), torch.nan)
        place = torch.tensor(here, device=device)
        whole[:, place[:, None], place] = rho
        return {CORRELATIONS: whole}

    def _statistics(self, vectors: FeedForwardStatistics | None, layer: Layer) -> dict[str, Tensor]:
        """The batch's statistics of a layer, by the names that `Maps.statistics` uses."""
        if vectors is None:
            return {}

        def mean_size(rows: Tensor) -> Tensor:
            return torch.stack(
                [rows[index, :n].abs().mean(0) for index, n in enumerate(self.lengths)]
            )

        values = {
            "ff_output_norm": torch.linalg.vector_norm(vectors.output, dim=-1),
            "ff_output_mean_abs": mean_size(vectors.output),
            "ff_input_mean_abs": mean_size(vectors.input),
        }
        if vectors.bypassed is not None:
            values["bypassed_norm"] = torch.linalg.vector_norm(vectors.bypassed, dim=-1)
        norm = layer.norm_behind_feed_forward
        if vectors.ordinary is not None and norm is not None and norm.gamma is not None:
            batch, gamma = len(self.lengths), norm.gamma.to(vectors.output.dtype)
            values |= {
                "gamma": gamma.expand(batch, -1),
                "special_dimensions": special_dimensions(gamma)[0].expand(batch, -1),
                "ff_without_special": vectors.ordinary,
            }
        return values


def _numbers(errors: list[tuple[int, str, Tensor]]) -> list[tuple[int, str, float]]:
    """The same with numbers for tensors, brought from their device in one go."""
    if not errors:
        return []
    numbers = torch.stack([tensor for _, _, tensor in errors]).tolist()
    named = zip(errors, numbers, strict=True)
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
