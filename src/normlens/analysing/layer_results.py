"""What a layer gives to a call's result: tensors by group and name, still on their device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normlens.analysing.columns import CORRELATIONS, ROUTING, Columns, reads_others
from normlens.analysing.correlations import correlations_of
from normlens.analysis import mixing_ratio, special_dimensions
from normlens.components import Layer, Reach
from normlens.decomposition.results import FeedForwardStatistics, LayerMaps
from normlens.device_constants import on_device

Key = tuple[str, str]  # group of results, name within it

#: Groups of results that are returned in the type that the user chooses.
MAPS = ("arrays", "heads")


@dataclass(frozen=True)
class LayerResults:
    """One layer's results for a batch; the first axis of every tensor is the batch."""

    index: int
    reach: Reach
    reads_others: bool
    precision: str | None
    tensors: dict[Key, Tensor]
    errors: list[tuple[str, Tensor]] = field(default_factory=list)  # of completeness, by scope
    kernel_errors: list[tuple[str, Tensor]] = field(default_factory=list)
    experts: int = 0
    peaks: list[tuple[str, Tensor]] = field(default_factory=list)  # of maps in float16, by name

    @property
    def device(self) -> torch.device | None:
        """Where the layer was computed; None if there is no result."""
        errors = [error for _, error in (*self.errors, *self.kernel_errors)]
        return next((each.device for each in (*self.tensors.values(), *errors)), None)

    def on(self, device: torch.device) -> LayerResults:
        """The same results on another device."""
        # A copy to the CPU that is not waited for would be read before it is there.
        soon = device.type == "cuda"

        def moved(named: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
            return [(name, number.to(device, non_blocking=soon)) for name, number in named]

        return replace(
            self,
            tensors={key: t.to(device, non_blocking=soon) for key, t in self.tensors.items()},
            errors=moved(self.errors),
            kernel_errors=moved(self.kernel_errors),
            peaks=moved(self.peaks),
        )


@dataclass(frozen=True)
class Wanted:
    """What a call asks of each layer of a batch."""

    columns: Columns
    scopes: Sequence[str]
    arrays: bool = True
    correlations: bool = False
    map_dtype: torch.dtype | None = None  # None: as they were computed

    def of(self, result: LayerMaps, index: int, layer: Layer) -> LayerResults:
        """The results of layer `index`."""
        groups = {
            "arrays": result.norms if self.arrays else {},
            "mixing": _mixing_ratios(result),
            "heads": result.head_maps,
            "standard_error": result.standard_error,
            "statistics": self._statistics(result.statistics, layer),
            CORRELATIONS: self._correlations(result, layer),
        }
        routing = {(ROUTING, name): tensor for name, tensor in _routing(layer).items()}
        kernels = (("sum", result.kernel_error), ("sample", result.sampled_error))
        tensors = {
            (group, name): self.columns.padded(tensor, group, name, layer)
            for group, values in groups.items()
            for name, tensor in values.items()
        }
        tensors, peaks = self._converted(tensors, layer)
        return LayerResults(
            index,
            layer.reach,
            reads_others(layer),
            result.precision,
            tensors | routing,
            list(result.completeness.items()),
            [(kind, error) for kind, error in kernels if error is not None],
            0 if layer.experts is None else len(layer.experts.members),
            peaks,
        )

    def _converted(
        self, tensors: dict[Key, Tensor], layer: Layer
    ) -> tuple[dict[Key, Tensor], list[tuple[str, Tensor]]]:
        """The results with maps in the chosen type, and the largest entry of each in float16."""
        maps = {key: tensor for key, tensor in tensors.items() if key[0] in MAPS}
        if self.map_dtype is None or not maps:
            return tensors, []
        peaks = []
        if self.map_dtype == torch.float16:
            any_map = next(iter(maps.values()))
            left_out = ~self._allowed(layer, any_map.shape[-2], any_map.device)  # (b, i, j)
            for (group, name), tensor in maps.items():
                mask = left_out if tensor.ndim == 3 else left_out[:, None]
                what = name if group == "arrays" else f"single heads of {name}"
                peaks.append((what, tensor.masked_fill(mask, 0).amax()))
        return tensors | {key: tensor.to(self.map_dtype) for key, tensor in maps.items()}, peaks

    def _allowed(self, layer: Layer, n: int, device: torch.device) -> Tensor:
        """Pairs of real tokens that attention allows, (b, i, j)."""
        lengths = on_device(tuple(self.columns.lengths), device)
        real = torch.arange(n, device=device) < lengths[:, None]
        allowed = real[:, None, :] & layer.reach.mask(n, device)
        if self.columns.width:
            others = self.columns.are_real(device)[:, None].expand(-1, n, -1)
            allowed = torch.cat([others & reads_others(layer), allowed], dim=-1)
        return real[:, :, None] & allowed

    def _correlations(self, result: LayerMaps, layer: Layer) -> dict[str, Tensor]:
        """Spearman's ρ of every two scopes, (b, scope, scope), ranked where the maps lie."""
        here = [place for place, scope in enumerate(self.scopes) if scope in result.norms]
        if not self.correlations or not here:
            return {}
        norms = {self.scopes[place]: result.norms[self.scopes[place]] for place in here}
        # Scopes lie in front, as ranking takes them.
        maps = torch.stack(
            [self.columns.padded(norms[scope], "arrays", scope, layer) for scope in norms]
        ).transpose(0, 1)  # (b, s, i, j)
        allowed = self._allowed(layer, maps.shape[-2], maps.device)
        rho = correlations_of(maps, list(norms), allowed, self.columns.width)
        if len(here) == len(self.scopes):
            return {CORRELATIONS: rho}
        size = len(self.scopes)
        whole = rho.new_full((len(rho), size, size), torch.nan)
        place = on_device(tuple(here), maps.device)
        whole[:, place[:, None], place] = rho
        return {CORRELATIONS: whole}

    def _statistics(self, vectors: FeedForwardStatistics | None, layer: Layer) -> dict[str, Tensor]:
        """The batch's statistics of a layer, by the names that `Maps.statistics` uses."""
        if vectors is None:
            return {}
        lengths = self.columns.lengths

        def mean_size(rows: Tensor) -> Tensor:
            return torch.stack([rows[index, :n].abs().mean(0) for index, n in enumerate(lengths)])

        values = {
            "ff_output_norm": torch.linalg.vector_norm(vectors.output, dim=-1),
            "ff_output_mean_abs": mean_size(vectors.output),
            "ff_input_mean_abs": mean_size(vectors.input),
        }
        if vectors.bypassed is not None:
            values["bypassed_norm"] = torch.linalg.vector_norm(vectors.bypassed, dim=-1)
        norm = layer.norm_behind_feed_forward
        if vectors.ordinary is not None and norm is not None and norm.gamma is not None:
            gamma = norm.gamma.to(vectors.output.dtype)
            values |= {
                "gamma": gamma.expand(len(lengths), -1),
                "special_dimensions": special_dimensions(gamma)[0].expand(len(lengths), -1),
                "ff_without_special": vectors.ordinary,
            }
        return values


def _mixing_ratios(result: LayerMaps) -> dict[str, Tensor]:
    """The mixing ratio of every scope, all taken together."""
    if not result.others:
        return {}
    others = torch.stack(list(result.others.values()))
    own = torch.stack([result.own[scope] for scope in result.others])
    return dict(zip(result.others, mixing_ratio(others, own).unbind(), strict=True))


def _routing(layer: Layer) -> dict[str, Tensor]:
    """The experts that the tokens of a layer used, if it was given with them."""
    experts = layer.experts
    if experts is None or experts.routing is None:
        return {}
    routing = experts.routing
    dtype = torch.promote_types(routing.weights.dtype, torch.float32)
    read = {"experts": routing.experts, "weights": routing.weights.to(dtype)}
    if experts.shared is not None:
        ones = torch.ones_like(routing.weights[..., 0])
        read["shared"] = (ones if routing.shared is None else routing.shared).to(dtype)
    return read
