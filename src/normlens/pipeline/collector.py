"""Collect one batch's results in one stack: layer by layer from their device, checked, as maps."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import UnsupportedModelError
from normlens.frozen.norm_maps import LayerMaps
from normlens.gpu.transfer import DeviceTransfer, on_device
from normlens.inputs.text import Encoded, Text
from normlens.layers import Layer, Reach
from normlens.measures.maps import mixing_ratio, special_dimensions
from normlens.measures.tensors import spearman_matrices
from normlens.models.parts import DECODER
from normlens.options import AUTO, SHAPLEY
from normlens.pipeline.batches import (
    TOLERANCE,
    check_completeness,
    check_kernels,
    check_range,
    components_in_words,
    provenance,
)
from normlens.results.axes import GROUPS, Axes, Routing, TokenAxis, axes_of
from normlens.results.files import Place
from normlens.results.maps import Correlations, Maps
from normlens.scopes import components_of, holds
from normlens.trace.checks import Checks, Deferred
from normlens.trace.run import LayerTrace

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.pipeline.call import Stack

Key = tuple[str, str]  # group of results, name within it

#: Groups beside those of `Maps.groups`: Spearman's ρ between scopes; the experts of each token.
CORRELATIONS, ROUTING = "correlations", "routing"
#: Groups of single numbers: errors of completeness by scope; how far a kernel's parts miss their
#: sum, and its norms a sample; the largest entry of each map in float16.
COMPLETENESS, KERNELS, PEAKS = "completeness", "kernels", "peaks"
KERNEL_ERRORS = {(KERNELS, "sum"), (KERNELS, "sample")}
#: Groups of results that are returned in the type that the user chooses.
MAPS = ("arrays", "heads")


def _axes(key: Key) -> Axes:
    """The axes of a result; of single numbers and of ρ, no axes of tokens."""
    group, name = key
    if group in GROUPS:
        return axes_of(group, name)
    return ("layer", "target") if group == ROUTING else ("layer",)


def reads_others(layer: Layer) -> bool:
    """Whether a layer has an attention to another sequence."""
    return any(attention.source is not None for attention in layer.attentions)


def token_axis(sequence: Encoded) -> TokenAxis:
    """The tokens of a sequence as labels of an axis."""
    return TokenAxis(
        sequence.tokens, sequence.ids, sequence.special, sequence.words, sequence.word_labels
    )


# Results of one layer that are made of its maps where they lie.


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


def _mixing_ratios(result: LayerMaps) -> dict[str, Tensor]:
    """The mixing ratio of every scope, all taken together."""
    if not result.others:
        return {}
    others = torch.stack(list(result.others.values()))
    own = torch.stack([result.own[scope] for scope in result.others])
    return dict(zip(result.others, mixing_ratio(others, own).unbind(), strict=True))


def _statistics(result: LayerMaps, layer: Layer, lengths: Sequence[int]) -> dict[str, Tensor]:
    """The batch's statistics of a layer, by the names that `Maps.statistics` uses."""
    vectors = result.statistics
    if vectors is None:
        return {}

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


#: A layer's reach, and whether it reads tokens of another sequence.
Reading = tuple[Reach, bool]


def allowed_pairs(
    readings: Sequence[Reading], n: int, others: int = 0, place: Place | None = None
) -> NDArray[np.bool_]:
    """[layer, target, source], for n tokens; columns of `others` of another sequence come first.

    With `place` they are written to a file. Otherwise layers that are alike share one mask.
    """
    shape = len(readings), n, others + n
    shared = place is None and len(set(readings)) == 1
    if place is not None:
        masks = place("allowed", shape, np.dtype(np.bool_))
    else:
        masks = np.empty((1, *shape[1:]) if shared else shape, dtype=bool)
    own: dict[Reach, NDArray[np.bool_]] = {}
    for mask, (reach, reads) in zip(masks, readings[: len(masks)], strict=True):
        if reach not in own:
            own[reach] = reach.array(n)
        mask[:, :others], mask[:, others:] = reads, own[reach]
    return np.broadcast_to(masks, shape) if shared else masks


# A batch's large results, which leave their device or memory while the next layer is computed.


#: From so many bytes on a layer's result leaves at once.
SENT_AT_ONCE = 1 << 20


class _Recorded(NamedTuple):
    """Results of a recorded layer, which are sent whenever it is replayed."""

    tensors: Mapping[Key, Tensor]
    reach: Reach
    ready: torch.cuda.Event


@dataclass
class LargeResults:
    """Arrays of the host, or of a file, that large results are copied to while the GPU computes.

    `layers` is how many layers may come; the first `width` columns are of another sequence. Without
    a `transfer` results of a GPU are kept for a replay. With `place` every result of pairs of
    tokens goes to a file, from a CPU as well; there is only one text then.
    """

    layers: int
    width: int
    transfer: DeviceTransfer | None
    place: Place | None
    _recorded: list[_Recorded] = field(default_factory=list)
    _arrays: dict[Key, NDArray[Any]] = field(default_factory=dict)  # (b, layer, …)
    _count: dict[Key, int] = field(default_factory=dict)  # layers that are there or under way

    def takes(self, key: Key, tensor: Tensor) -> bool:
        """Whether a result is large, or goes to a file."""
        if self.place is not None:
            return _axes(key)[-2:] == ("target", "source")
        return tensor.is_cuda and tensor.nbytes >= SENT_AT_ONCE

    def add(self, tensors: Mapping[Key, Tensor], reach: Reach) -> None:
        """Send some of a layer's results."""
        if self.place is not None:
            # Types of many bytes first, so that each array begins at a multiple of its own.
            tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
        if self.transfer is not None:
            self._send(tensors, reach, None)
        elif self.place is not None:
            for key, tensor in tensors.items():
                self._next(key, tensor).copy_(tensor)
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
        assert self.transfer is not None
        alike: dict[Any, list[Key]] = {}
        for key, tensor in tensors.items():
            # The column of target 0 in a causal result; None where targets may look ahead.
            causal = reach.ahead == 0 and _axes(key)[-2:] == ("target", "source")
            form = tensor.shape, tensor.dtype, self.width if causal else None
            alike.setdefault(form, []).append(key)
        for (*_, first), same in alike.items():
            into = [self._next(key, tensors[key]) for key in same]
            self.transfer.send([tensors[key] for key in same], into, ready, first)

    def _next(self, key: Key, tensor: Tensor) -> Tensor:
        """Where the next layer's result arrives; pages that are never written take no memory."""
        if key not in self._arrays:
            kind = torch.empty(0, dtype=tensor.dtype).numpy().dtype
            shape = self.layers, *tensor.shape[1:]
            if self.place is None:
                self._arrays[key] = np.zeros((len(tensor), *shape), dtype=kind)
            else:
                self._arrays[key] = self.place("/".join(key), shape, kind)[None]
        layer = self._count.get(key, 0)
        self._count[key] = layer + 1
        return torch.from_numpy(self._arrays[key])[:, layer]

    def arrived(self) -> dict[Key, NDArray[Any]]:
        """Everything that was sent, (b, layer, …) by key, once the transfer was waited for."""
        arrays, self._arrays = self._arrays, {}
        return {key: array[:, : self._count[key]] for key, array in arrays.items()}


# All results of a batch in a stack.


@dataclass
class Computed:
    """What was computed of which layers; a replay computes the same."""

    covered: dict[Key, list[int]] = field(default_factory=dict)  # layers of each result
    shapes: dict[Key, torch.Size] = field(default_factory=dict)
    readings: dict[int, Reading] = field(default_factory=dict)  # by layer
    devices: dict[torch.device, None] = field(default_factory=dict)  # where, in this order
    precision: str | None = None  # of the feed-forward products
    experts: int = 0  # of a layer that has some

    @property
    def layers(self) -> list[int]:
        """The layers that have an array, or ρ."""
        groups = (*GROUPS, CORRELATIONS)
        having = {k for key, layers in self.covered.items() if key[0] in groups for k in layers}
        return [layer for layer in self.readings if layer in having]


class Collector:
    """One batch's results in one stack of layers.

    Small results wait on their device, with the numbers of the checks, until all layers are
    through; large ones leave at once (`transfer`), or go to a file where `place` gives them room.
    Where layers lie on several devices, their results gather on the lens's. `others` are the tokens
    of another sequence that each sequence reads, if they read one; they are the first columns of
    every map, zero where nothing of them has arrived.
    """

    def __init__(
        self,
        lens: Lens,
        stack: Stack,
        sequences: Sequence[Encoded],
        others: Sequence[TokenAxis] = (),
        *,
        transfer: DeviceTransfer | None = None,
        place: Place | None = None,
    ):
        self.lens, self.stack, self.sequences, self.others = lens, stack, sequences, others
        self.lengths = [len(sequence) for sequence in sequences]
        self.other_lengths = [len(tokens) for tokens in others]
        self.width = max(self.other_lengths, default=0)  # columns of the others, with padding
        self.computed = Computed()
        self._device, self._transfer, self._place = lens.device, transfer, place
        self._pending = Deferred(transfer)
        self._large = LargeResults(len(stack.request.layers), self.width, transfer, place)
        self.checks = Checks(
            lens.adapter,
            lens.dtype,
            self.lengths,
            stack.layer_in_words,
            self.other_lengths,
            self._pending,
        )
        self._leaving: torch.cuda.Event | None = None  # from when on all small results are home
        self._recording: object = None  # stays in memory until its results are taken
        self._taking = threading.Lock()

    # Layers as the model runs them ----------------------------------------------------------------

    def check(self, traced: LayerTrace) -> Layer:
        """Compare a layer with what its adapter says; return it in the algebra's precision."""
        layer = traced.layer.to(self.lens.compute_dtype)
        for name, vectors in traced.sources.items():
            if vectors.shape[:2] != (len(self.lengths), self.width):
                raise UnsupportedModelError(
                    f"{vectors.shape[1]} vectors of {name!r} are read where the adapter's "
                    f"`source_tokens` lists up to {self.width} tokens"
                )
        self.checks.add(traced, layer)
        return layer

    def add(self, result: LayerMaps, index: int, layer: Layer) -> None:
        """Keep what is asked for of layer `index` of this stack."""
        computed, large = self.computed, dict[Key, Tensor]()
        # Layers of experts have no kernels; the precision of the other layers' is what matters.
        tensors = self._results(result, layer)
        if not KERNEL_ERRORS.isdisjoint(tensors) or KERNEL_ERRORS.isdisjoint(computed.covered):
            computed.precision = result.precision or computed.precision
        if layer.experts is not None:
            computed.experts = len(layer.experts.members)
        computed.readings[index] = layer.reach, reads_others(layer)
        # A copy to the CPU that is not waited for would be read before it is there.
        soon = self._device.type == "cuda"
        for key, tensor in tensors.items():
            if computed.shapes.setdefault(key, tensor.shape) != tensor.shape:
                raise UnsupportedModelError(
                    f"{key[0]} of {key[1]} have another shape in layer {index} "
                    f"{tuple(tensor.shape[1:])} than in layer {computed.covered[key][-1]} "
                    f"{tuple(computed.shapes[key][1:])}; analyse such layers one by one (`layers`)"
                )
            computed.covered.setdefault(key, []).append(index)
            computed.devices[tensor.device] = None
            tensor = tensor.to(self._device, non_blocking=soon)
            if self._large.takes(key, tensor):
                large[key] = tensor
            else:
                self._pending.add(key, tensor)
        if large:
            self._large.add(large, layer.reach)
        self._pending.make_room()

    def _results(self, result: LayerMaps, layer: Layer) -> dict[Key, Tensor]:
        """A layer's results that are asked for, the first axis the batch, and single numbers."""
        request = self.stack.request
        groups = {
            "arrays": result.norms if request.arrays else {},
            "mixing": _mixing_ratios(result),
            "heads": result.head_maps,
            "standard_error": result.standard_error,
            "statistics": _statistics(result, layer, self.lengths),
            CORRELATIONS: self._correlations(result, layer) if request.correlations else {},
            ROUTING: _routing(layer),
            COMPLETENESS: result.completeness,
        }
        tensors: dict[Key, Tensor] = {}
        for group, named in groups.items():
            for name, tensor in named.items():
                tensors[group, name] = self._padded(tensor, (group, name), layer)
        for kind, error in (("sum", result.kernel_error), ("sample", result.sampled_error)):
            if error is not None:
                tensors[KERNELS, kind] = error
        if request.map_dtype != AUTO:
            left_out: Tensor | None = None
            for group, name in [key for key in tensors if key[0] in MAPS]:
                tensor = tensors[group, name]
                if request.map_dtype == "float16":
                    if left_out is None:
                        left_out = ~self._allowed(layer, tensor.device)  # (b, i, j)
                    mask = left_out if tensor.ndim == 3 else left_out[:, None]
                    what = name if group == "arrays" else f"single heads of {name}"
                    tensors[PEAKS, what] = tensor.masked_fill(mask, 0).amax()
                tensors[group, name] = tensor.to(getattr(torch, request.map_dtype))
        return tensors

    def _padded(self, tensor: Tensor, key: Key, layer: Layer) -> Tensor:
        """A layer's result (b, …, i, j) with zeros in the columns that it does not have."""
        if not self.width or _axes(key)[-1] != "source":
            return tensor
        (group, name), n = key, tensor.shape[-2]
        if tensor.shape[-1] == self.width + n:  # of both sequences
            return tensor
        crossed = "CROSS" in components_of(name) or (group == "statistics" and reads_others(layer))
        # Weights and single heads are of one attention; norms behind CROSS are of both sequences.
        if not crossed:
            tensor = F.pad(tensor, (self.width, 0))
        elif group == "heads" or name.endswith("-W"):
            tensor = F.pad(tensor, (0, n))
        assert tensor.shape[-1] == self.width + n
        return tensor

    def _allowed(self, layer: Layer, device: torch.device) -> Tensor:
        """Pairs of real tokens that attention allows, (b, i, j)."""

        def real(lengths: Sequence[int], n: int) -> Tensor:
            return torch.arange(n, device=device) < on_device(tuple(lengths), device)[:, None]

        n = max(self.lengths)
        targets = real(self.lengths, n)
        allowed = targets[:, None, :] & layer.reach.mask(n, device)
        if self.width:
            others = real(self.other_lengths, self.width)[:, None].expand(-1, n, -1)
            allowed = torch.cat([others & reads_others(layer), allowed], dim=-1)
        return targets[:, :, None] & allowed

    def _correlations(self, result: LayerMaps, layer: Layer) -> dict[str, Tensor]:
        """Spearman's ρ of every two scopes, (b, scope, scope), ranked where the maps lie."""
        scopes = self.stack.request.scopes
        here = [place for place, scope in enumerate(scopes) if scope in result.norms]
        if not here:
            return {}
        names = [scopes[place] for place in here]
        # Scopes lie in front, as ranking takes them.
        maps = torch.stack(
            [self._padded(result.norms[name], ("arrays", name), layer) for name in names]
        ).transpose(0, 1)  # (b, s, i, j)
        rho = correlations_of(maps, names, self._allowed(layer, maps.device), self.width)
        if len(here) == len(scopes):
            return {CORRELATIONS: rho}
        whole = rho.new_full((len(rho), len(scopes), len(scopes)), torch.nan)
        place = on_device(tuple(here), maps.device)
        whole[:, place[:, None], place] = rho
        return {CORRELATIONS: whole}

    # On the way to the host -----------------------------------------------------------------------

    def leave(self) -> None:
        """Send off what waits on a GPU, behind its last kernel and before those of another batch.

        Results of several devices are asked for when they are needed.
        """
        if self._transfer is None or len(self.computed.devices) > 1:
            return
        self._pending.stack_pending()
        self._pending.leave()
        self._leaving = torch.cuda.Event()
        self._leaving.record()

    def recorded(self) -> None:
        """Copy everything that waits to pinned memory, as the last thing that a recording does."""
        self._pending.stack_pending()
        self._pending.to_host()

    def replayed(self, recorded: Collector, recording: object) -> None:
        """Take over what a recorded batch of the same lengths leaves; its replay has begun."""
        self._recording = recording
        self._leaving = torch.cuda.Event()
        self._leaving.record()
        self.checks = replace(recorded.checks, pending=self._pending)
        self.computed = recorded.computed
        self._pending.replayed(recorded._pending)
        self._large.replayed(recorded._large)

    @property
    def pending(self) -> bool:
        """Whether results still lie where the next replay would write."""
        return self._leaving is not None

    def take(self) -> None:
        """Wait for what is sent, and copy what a replay leaves: the next one writes over it.

        Nothing else may be asked of the device before: that would hold it up. The thread of the
        next replay may ask for this, too.
        """
        with self._taking:
            if self._transfer is not None:
                self._transfer.wait()
            if self._leaving is None:
                return
            self._leaving.synchronize()
            if self._recording is not None:
                self._pending.take()
            self._leaving = self._recording = None

    # At the end -----------------------------------------------------------------------------------

    def maps(self, texts: Sequence[Text | None]) -> list[Maps]:
        """The maps of every sequence, with its text, if they are exact."""
        computed, words = self.computed, self.stack.layer_in_words
        layers = computed.layers
        readings = [computed.readings[layer] for layer in layers]
        allowed = []  # while a GPU works
        for n, others in zip(self.lengths, self.other_lengths or [0] * len(texts), strict=True):
            allowed.append(allowed_pairs(readings, n, others, self._place))
        self.take()
        self.checks.judge()
        errors = self._numbers(COMPLETENESS)
        check_completeness(errors, self.lens.dtype, words)
        check_kernels(self._numbers(KERNELS), computed.precision, words)
        check_range(self._numbers(PEAKS), words)
        worst = max(map(itemgetter(2), errors), default=math.nan)  # weights have no parts
        said = self._provenance(worst)
        coverage = {
            "/".join(key): having
            for key, having in computed.covered.items()
            if key[0] in GROUPS and having != layers
        }
        packed = []
        for index, (sequence, found) in enumerate(zip(self.sequences, self._arrays(), strict=True)):
            axis, columns, arrays = token_axis(sequence), dict[str, Any](), found["arrays"]
            if self.others:
                n, m = self.lengths[index], self.other_lengths[index]
                columns["source_axis"] = self.others[index].followed_by(axis)
                columns["same_token"] = np.eye(n, m + n, k=m, dtype=bool)
            packed.append(
                Maps(
                    arrays={s: arrays[s] for s in self.stack.request.scopes if s in arrays},
                    layers=list(layers),
                    allowed=allowed[index],
                    completeness=worst,
                    provenance=dict(said),
                    mixing=found["mixing"],
                    heads=found["heads"],
                    standard_error=found["standard_error"],
                    statistics=found["statistics"],
                    correlations=self._all_correlations(found[CORRELATIONS], layers),
                    text=texts[index],
                    coverage=dict(coverage),
                    routing=self._all_routing(found[ROUTING], axis, layers),
                    grid=sequence.grid,
                    **axis.labels,
                    **columns,
                )
            )
        return packed

    def _numbers(self, kind: str) -> list[tuple[int, str, float]]:
        """The numbers of one kind with their layers and names, in the order of the layers."""
        arrived, numbers = self._pending.arrived(), []
        for key, layers in self.computed.covered.items():
            if key[0] == kind:
                for layer, number in zip(layers, arrived[key].tolist(), strict=True):
                    numbers.append((layer, key[1], number))
        return sorted(numbers, key=itemgetter(0))

    def _arrays(self) -> list[dict[str, dict[str, NDArray[Any]]]]:
        """Each sequence's results by group and name, without padding; the first axis is layers."""
        small, large = self._pending.arrived(), self._large.arrived()
        results: list[Any] = [defaultdict(dict) for _ in self.lengths]
        for key in self.computed.covered:
            axes = _axes(key)
            if axes == ("layer",) and key[0] != CORRELATIONS:
                continue  # numbers
            whole = large[key] if key in large else small[key].swapaxes(0, 1)
            for index, n in enumerate(self.lengths):
                array = whole[index]
                if len(self.lengths) > 1:
                    tokens = ("target",) if self.width else ("target", "source")
                    array = array[tuple(slice(n if a in tokens else None) for a in axes)]
                    if self.width and axes[-1] == "source":
                        m, width = self.other_lengths[index], self.width
                        array = np.take(array, [*range(m), *range(width, width + n)], axis=-1)
                    # a view would keep the whole batch alive
                    array = array if array.base is None else array.copy()
                results[index][key[0]][key[1]] = np.ascontiguousarray(array)
        return results

    def _all_correlations(
        self, found: Mapping[str, NDArray[Any]], layers: list[int]
    ) -> Correlations | None:
        """Spearman's ρ of one sequence with an entry for each layer, NaN where there is none."""
        if not found:
            return None
        (rho,), covered = found.values(), self.computed.covered[CORRELATIONS, CORRELATIONS]
        whole = rho
        if covered != layers:
            whole = np.full((len(layers), *rho.shape[1:]), np.nan)
            whole[[layers.index(layer) for layer in covered]] = rho
        return Correlations(list(self.stack.request.scopes), whole)

    def _all_routing(
        self, found: Mapping[str, NDArray[Any]], axis: TokenAxis, layers: list[int]
    ) -> Routing | None:
        """The experts that a sequence's tokens used, in the layers of its maps."""
        if not found:
            return None
        covered, experts = self.computed.covered[ROUTING, "experts"], self.computed.experts
        given = found["experts"], found["weights"], experts, axis.tokens, found.get("shared")
        return Routing(covered, *given).of_layers(layers)

    def _provenance(self, completeness: float) -> dict[str, Any]:
        lens, stack, computed = self.lens, self.stack, self.computed
        settings = stack.request.settings
        said = provenance(lens, settings.rule, completeness, TOLERANCE[lens.dtype])
        said |= {"origin": stack.request.origin, "precision": computed.precision}
        if len(computed.devices) > 1:
            said["device"] = ", ".join(map(str, computed.devices))
        if stack.request.map_dtype != AUTO:
            said["map_dtype"] = stack.request.map_dtype
        if stack.name:
            said |= {
                "stack": stack.name,
                "stack_layers": len(stack.layers),
                "components": components_in_words(stack.layers),
                "causal": stack.name == DECODER,
            }
        if (outside := lens.adapter.outside_scopes()) is not None:
            said["outside_scopes"] = outside
        if settings.rule == SHAPLEY:
            said |= {"samples": settings.samples, "seed": settings.seed}
        return said
