"""The results of one layer: which arrays there are, their columns, and how they reach the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import UnsupportedModelError
from normlens.frozen.norm_maps import FeedForwardStatistics, LayerMaps
from normlens.gpu.transfer import DeviceTransfer, on_device
from normlens.layers import Layer, Reach
from normlens.measures import mixing_ratio, special_dimensions
from normlens.measures.tensors import spearman_matrices
from normlens.options import AUTO, Request
from normlens.results.axes import TokenAxis, axes_of, take
from normlens.results.files import Place
from normlens.scopes import components_of, holds

# The columns of a batch's maps: tokens of another sequence, if a layer reads one, then its own.
#
# Maps of a scope that nothing of the other sequence has reached are zero in its columns, so that
# all scopes and layers have the same columns.


#: The group of results that has no axis of tokens: Spearman's ρ between scopes.
CORRELATIONS = "correlations"
#: The group of what was read of experts: [layer, token] or [layer, token, place].
ROUTING = "routing"


class Columns:
    """How many tokens each sequence of a batch has, and which of another sequence it reads."""

    def __init__(self, lengths: Sequence[int], others: Sequence[TokenAxis] = ()):
        self.lengths = list(lengths)
        self.others = [len(tokens) for tokens in others]
        self.width = max(self.others, default=0)  # columns of the other sequence, with padding
        self._tokens = list(others)

    def other_tokens(self, index: int) -> TokenAxis | None:
        """The tokens of the other sequence that sequence `index` reads; None if there is none."""
        return self._tokens[index] if self._tokens else None

    def check(self, sources: Mapping[str, Tensor]) -> None:
        """Raise unless the other sequence has as many vectors (b, j, d) as it has tokens."""
        for name, vectors in sources.items():
            if vectors.shape[:2] != (len(self.lengths), self.width):
                raise UnsupportedModelError(
                    f"{vectors.shape[1]} vectors of {name!r} are read where the adapter's "
                    f"`source_tokens` lists up to {self.width} tokens"
                )

    def padded(self, tensor: Tensor, group: str, name: str, layer: Layer) -> Tensor:
        """A layer's result (b, …, i, j) with zeros in the columns that it does not have."""
        if not self.width or group == CORRELATIONS or axes_of(group, name)[-1] != "source":
            return tensor
        n, parts = tensor.shape[-2], components_of(name)
        if tensor.shape[-1] == self.width + n:  # of both sequences
            return tensor
        crossed = "CROSS" in parts or (group == "statistics" and reads_others(layer))
        # Weights and single heads are of one attention; norms behind CROSS are of both sequences.
        one_attention = group == "heads" or name.endswith("-W")
        if not crossed:
            tensor = F.pad(tensor, (self.width, 0))
        elif one_attention:
            tensor = F.pad(tensor, (0, n))
        assert tensor.shape[-1] == self.width + n
        return tensor

    def real(self, array: NDArray[Any], group: str, name: str, index: int) -> NDArray[Any]:
        """One sequence's result, first axis layers, without padding."""
        if group == CORRELATIONS:
            return array
        if group == ROUTING:
            return array[:, : self.lengths[index]]
        axes, n = axes_of(group, name), self.lengths[index]
        if self.width and axes[-1] == "source":
            columns = [*range(self.others[index]), *range(self.width, self.width + n)]
            return take(array, axes, {"target": np.arange(n), "source": np.array(columns)})
        tokens = sum(axis in ("target", "source") for axis in axes)
        place: tuple[Any, ...] = (..., *([slice(n)] * tokens))
        return array[place]

    def are_real(self, device: torch.device) -> Tensor:
        """Which columns of the other sequence are no padding, (b, j)."""
        lengths = on_device(tuple(self.others), device)
        return torch.arange(self.width, device=device) < lengths[:, None]


def reads_others(layer: Layer) -> bool:
    """Whether a layer has an attention to another sequence."""
    return any(attention.source is not None for attention in layer.attentions)


# Spearman's ρ between a batch's scopes, each two of them over the sources that they have.


def correlations_of(maps: Tensor, scopes: Sequence[str], allowed: Tensor, others: int) -> Tensor:
    """ρ of every two of the `scopes`, (b, s, i, j) → (b, s, s), over the allowed pairs (b, i, j).

    The first `others` columns are of another sequence. Two scopes that have parts of the same
    sequence alone are compared there: the zeros that both have in other columns would inflate ρ.
    """
    rho = spearman_matrices(maps, allowed)
    if not others:
        return rho
    for kind, columns in (((True, False), slice(others, None)), ((False, True), slice(others))):
        some = [place for place, scope in enumerate(scopes) if holds(scope) == kind]
        if some:
            at = on_device(tuple(some), maps.device)
            part = spearman_matrices(maps[:, at][..., columns], allowed[..., columns])
            rho[:, at[:, None], at] = part
    return rho


# What a layer gives to a call's result: tensors by group and name, still on their device.


Key = tuple[str, str]  # group of results, name within it

#: Groups of results that are returned in the type that the user chooses.
MAPS = ("arrays", "heads")


@dataclass(frozen=True)
class Wanted:
    """What a call asks of each layer of a batch."""

    columns: Columns
    request: Request

    def of(self, result: LayerMaps, layer: Layer) -> tuple[dict[Key, Tensor], dict[str, Tensor]]:
        """A layer's results, and the largest entry of each map that is returned in float16.

        The first axis of every result is the batch.
        """
        groups = {
            "arrays": result.norms if self.request.arrays else {},
            "mixing": _mixing_ratios(result),
            "heads": result.head_maps,
            "standard_error": result.standard_error,
            "statistics": self._statistics(result.statistics, layer),
            CORRELATIONS: self._correlations(result, layer),
        }
        tensors = {
            (group, name): self.columns.padded(tensor, group, name, layer)
            for group, values in groups.items()
            for name, tensor in values.items()
        }
        peaks: dict[str, Tensor] = {}
        maps = {key: tensor for key, tensor in tensors.items() if key[0] in MAPS}
        if self.request.map_dtype == "float16" and maps:
            any_map = next(iter(maps.values()))
            left_out = ~self._allowed(layer, any_map.shape[-2], any_map.device)  # (b, i, j)
            for (group, name), tensor in maps.items():
                mask = left_out if tensor.ndim == 3 else left_out[:, None]
                what = name if group == "arrays" else f"single heads of {name}"
                peaks[what] = tensor.masked_fill(mask, 0).amax()
        if self.request.map_dtype != AUTO:
            dtype = getattr(torch, self.request.map_dtype)
            tensors |= {key: tensor.to(dtype) for key, tensor in maps.items()}
        return tensors | {(ROUTING, name): read for name, read in _routing(layer).items()}, peaks

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
        scopes = self.request.scopes
        here = [place for place, scope in enumerate(scopes) if scope in result.norms]
        if not self.request.correlations or not here:
            return {}
        norms = {scopes[place]: result.norms[scopes[place]] for place in here}
        # Scopes lie in front, as ranking takes them.
        maps = torch.stack(
            [self.columns.padded(norms[scope], "arrays", scope, layer) for scope in norms]
        ).transpose(0, 1)  # (b, s, i, j)
        allowed = self._allowed(layer, maps.shape[-2], maps.device)
        rho = correlations_of(maps, list(norms), allowed, self.columns.width)
        if len(here) == len(scopes):
            return {CORRELATIONS: rho}
        size = len(scopes)
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


# A batch's large results, which leave their device or memory while the next layer is computed.


#: From so many bytes on a layer's result leaves at once.
SENT_AT_ONCE = 1 << 20


class _Recorded(NamedTuple):
    """Results of a recorded layer, which are sent whenever it is replayed."""

    tensors: Mapping[Key, Tensor]
    reach: Reach
    ready: torch.cuda.Event


class LargeResults:
    """Results on their way to the CPU; without an outbox they are kept for a replay.

    `layers` is how many layers may come. With `place` every result of pairs of tokens goes to a
    file, from a CPU as well; there is only one text then.
    """

    def __init__(
        self,
        columns: Columns,
        layers: int,
        transfer: DeviceTransfer | None,
        place: Place | None = None,
    ):
        self._columns, self._layers, self._transfer, self._in_file = (
            columns,
            layers,
            transfer,
            place,
        )
        self._recorded: list[_Recorded] = []
        self._arriving: dict[Key, NDArray[Any]] = {}  # (b, layer, …)
        self._count: dict[Key, int] = {}  # layers that are there or under way

    def takes(self, key: Key, tensor: Tensor) -> bool:
        """Whether a result is large, or goes to a file."""
        if self._in_file is not None:
            return _is_of_pairs(key)
        return bool(self._layers) and tensor.is_cuda and tensor.nbytes >= SENT_AT_ONCE

    def add(self, tensors: Mapping[Key, Tensor], reach: Reach) -> None:
        """Send some of a layer's results."""
        if self._in_file is not None:
            # Types of many bytes first, so that each array begins at a multiple of its own.
            tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
        if self._transfer is not None:
            self._send(tensors, reach, None)
        elif self._in_file is not None:
            for key, tensor in tensors.items():
                self._place(key, tensor).copy_(tensor)
        else:
            ready = torch.cuda.Event(external=True)
            ready.record()
            self._recorded.append(_Recorded(tensors, reach, ready))

    def replayed(self, recorded: LargeResults) -> None:
        """Send what a recorded batch has computed anew."""
        for each in recorded._recorded:
            self._send(*each)

    def _send(
        self, tensors: Mapping[Key, Tensor], reach: Reach, ready: torch.cuda.Event | None
    ) -> None:
        """Send results to arrays of the CPU, those of one form together."""
        assert self._transfer is not None
        alike: dict[Any, list[Key]] = {}
        for key, tensor in tensors.items():
            form = tensor.shape, tensor.dtype, self._first(key, reach)
            alike.setdefault(form, []).append(key)
        for (*_, first), same in alike.items():
            self._transfer.send(
                [tensors[key] for key in same],
                [self._place(key, tensors[key]) for key in same],
                ready,
                first,
            )

    def _first(self, key: Key, reach: Reach) -> int | None:
        """The column of target 0 in a causal result; None where targets may look ahead."""
        return self._columns.width if _is_of_pairs(key) and reach.ahead == 0 else None

    def _place(self, key: Key, tensor: Tensor) -> Tensor:
        """Where a layer's result arrives; pages that nothing is written to take no memory."""
        if key not in self._arriving:
            kind = torch.empty(0, dtype=tensor.dtype).numpy().dtype
            shape = self._layers, *tensor.shape[1:]
            if self._in_file is None:
                self._arriving[key] = np.zeros((len(tensor), *shape), dtype=kind)
            else:
                self._arriving[key] = self._in_file("/".join(key), shape, kind)[None]
        place = self._count.get(key, 0)
        self._count[key] = place + 1
        return torch.from_numpy(self._arriving[key])[:, place]

    def wait(self) -> None:
        """Wait for what is under way.

        Nothing else may be asked of the device before: that would hold it up.
        """
        if self._transfer is not None:
            self._transfer.wait()

    def arrived(self) -> Mapping[Key, NDArray[Any]]:
        """Everything that was sent, (b, layer, …) by key."""
        self.wait()
        arrived, self._arriving = self._arriving, {}
        return {key: array[:, : self._count[key]] for key, array in arrived.items()}


def _is_of_pairs(key: Key) -> bool:
    """Whether a result has an entry for each target and source."""
    return key[0] not in (CORRELATIONS, ROUTING) and axes_of(*key)[-2:] == ("target", "source")
