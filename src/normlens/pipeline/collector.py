"""Collect one batch's results in one stack: layer by layer from their device, checked, as maps."""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import UnsupportedModelError
from normlens.frozen.norm_maps import FeedForwardStatistics, LayerMaps
from normlens.gpu.transfer import DeviceTransfer, on_device
from normlens.inputs.text import Encoded
from normlens.layers import Experts, Layer, Reach
from normlens.measures.maps import mixing_ratio, special_dimensions
from normlens.measures.tensors import spearman_matrices
from normlens.models.parts import DECODER
from normlens.options import AUTO, SHAPLEY
from normlens.pipeline import batches
from normlens.results.axes import GROUPS, Axes, Routing, TokenAxis, axes_of
from normlens.results.files import Place
from normlens.results.maps import Correlations, Maps
from normlens.scopes import components_of, holds
from normlens.trace.checks import Checks, Deferred, real_tokens

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.pipeline.call import Stack

Key = tuple[str, str]  # group of results, name within it

#: Groups beside those of `Maps.groups`: Spearman's ρ between scopes; the experts of each token.
CORRELATIONS, ROUTING = "correlations", "routing"
#: Groups of single numbers: errors of completeness by scope; how far a kernel's parts miss their
#: sum, and its norms a sample; the largest entry of each map in float16.
SINGLE = COMPLETENESS, KERNELS, PEAKS = "completeness", "kernels", "peaks"
#: Groups of results that are returned in the type that the user chooses.
MAPS = ("arrays", "heads")
#: The last axes of a result for pairs of tokens.
PAIRS = ("target", "source")


def _axes(key: Key) -> Axes:
    """The axes of a result; of single numbers and of ρ, no axes of tokens."""
    group, name = key
    if group in GROUPS:
        return axes_of(group, name)
    return ("layer", "target") if group == ROUTING else ("layer",)


# Results of one layer that are made of its maps where they lie.


def _statistics(
    vectors: FeedForwardStatistics, layer: Layer, lengths: Sequence[int]
) -> dict[str, Tensor]:
    """The batch's statistics of a layer, by the names that `Maps.statistics` uses."""

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


def _routing(experts: Experts) -> dict[str, Tensor]:
    """The experts that the tokens of a layer used, if it was given with them."""
    if (routing := experts.routing) is None:
        return {}
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
    alike = place is None and len(set(readings)) == 1
    if place is not None:
        masks = place("allowed", shape, np.dtype(np.bool_))
    else:
        masks = np.empty((1 if alike else len(readings), *shape[1:]), dtype=bool)
    own: dict[Reach, NDArray[np.bool_]] = {}
    for mask, (reach, reads) in zip(masks, readings, strict=False):
        if reach not in own:
            own[reach] = reach.mask(n).numpy()
        mask[:, :others], mask[:, others:] = reads, own[reach]
    return np.broadcast_to(masks, shape) if alike else masks


# All results of a batch in a stack.


#: From so many bytes on a layer's result leaves its device at once.
SENT_AT_ONCE = 1 << 20


@dataclass
class Computed:
    """What was computed of which layers; a replay computes the same."""

    covered: dict[Key, list[int]] = field(default_factory=dict)  # layers of each result
    shapes: dict[Key, torch.Size] = field(default_factory=dict)
    readings: dict[int, Reading] = field(default_factory=dict)  # by layer
    devices: dict[torch.device, None] = field(default_factory=dict)  # where, in this order
    precision: str | None = None  # of the feed-forward products


class Collector:
    """One batch's results in one stack of layers.

    Small results wait on their device, with the numbers of the checks, until all layers are
    through. Large ones are copied to arrays of the host while the GPU computes (`transfer`);
    without a transfer those of a GPU are kept for replays. With `place` every result of pairs of
    tokens goes to a file, from a CPU as well; there is only one text then. Where layers lie on
    several devices, their results gather on the lens's. `others` are the tokens of another sequence
    that each sequence reads, if they read one; they are the first columns of every map, zero where
    nothing of them has arrived. `lengths` are those that the model reads, if sequences are padded.
    """

    def __init__(
        self,
        lens: Lens,
        stack: Stack,
        sequences: Sequence[Encoded],
        others: Sequence[TokenAxis] = (),
        lengths: Sequence[int] | None = None,
        transfer: DeviceTransfer | None = None,
        *,
        place: Place | None = None,
    ):
        self.lens, self.stack, self.sequences, self.others = lens, stack, sequences, others
        self.lengths = list(lengths or map(len, sequences))
        self.other_lengths = list(map(len, others))
        self.width = max(self.other_lengths, default=0)  # columns of the others, with padding
        self.computed = Computed()
        self._device, self._transfer, self._place = lens.device, transfer, place
        self._pending = Deferred(transfer)
        #: Large results (b, layer, …), and how many layers of each are there or under way.
        self._arrays: dict[Key, NDArray[Any]] = {}
        self._sent: Counter[Key] = Counter()
        #: Large results of recorded layers, which are sent whenever they are replayed.
        self._recorded: list[tuple[Mapping[Key, Tensor], Reach, Any]] = []
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

    def add(self, result: LayerMaps, index: int, layer: Layer) -> None:
        """Keep what is asked for of layer `index` of this stack."""
        computed, large = self.computed, dict[Key, Tensor]()
        # Layers of experts have no kernels; the precision of the other layers' is what matters.
        if result.kernel_errors or (KERNELS, "sum") not in computed.covered:
            computed.precision = result.precision or computed.precision
        computed.readings[index] = layer.reach, bool(layer.others)
        # A copy to the CPU that is not waited for would be read before it is there.
        soon = self._device.type == "cuda"
        for key, tensor in self._results(result, layer).items():
            if computed.shapes.setdefault(key, tensor.shape) != tensor.shape:
                raise UnsupportedModelError(
                    f"{key[0]} of {key[1]} have another shape in layer {index} "
                    f"{tuple(tensor.shape[1:])} than in layer {computed.covered[key][-1]} "
                    f"{tuple(computed.shapes[key][1:])}; analyse such layers one by one (`layers`)"
                )
            computed.covered.setdefault(key, []).append(index)
            computed.devices[tensor.device] = None
            tensor = tensor.to(self._device, non_blocking=soon)
            is_large = tensor.is_cuda and tensor.dim() > 1 and tensor.nbytes >= SENT_AT_ONCE
            if is_large if self._place is None else _axes(key)[-2:] == PAIRS:
                large[key] = tensor
            else:
                self._pending.add(key, tensor)
        if large and self._transfer is None and self._place is None:
            ready = torch.cuda.Event(external=True)
            ready.record()
            self._recorded.append((large, layer.reach, ready))
        elif large:
            self._send(large, layer.reach)

    def _send(
        self, tensors: Mapping[Key, Tensor], reach: Reach, ready: torch.cuda.Event | None = None
    ) -> None:
        """Send large results of a layer on their way, those of one form together."""
        alike: dict[Any, list[Key]] = {}
        # Types of many bytes first, so that each array of a file begins at a multiple of its own.
        for key, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
            # The column of target 0 in a causal result; None where targets may look ahead.
            first = self.width if reach.ahead == 0 and _axes(key)[-2:] == PAIRS else None
            alike.setdefault((tensor.shape, tensor.dtype, first), []).append(key)
        for (shape, dtype, first), keys in alike.items():
            same, into = [tensors[key] for key in keys], []
            for key in keys:
                if key not in self._arrays:
                    kind = torch.empty(0, dtype=dtype).numpy().dtype
                    room = len(self.stack.chosen), *shape[1:]
                    if self._place is None:  # pages that are never written take no memory
                        self._arrays[key] = np.zeros((shape[0], *room), dtype=kind)
                    else:
                        self._arrays[key] = self._place("/".join(key), room, kind)[None]
                into.append(torch.from_numpy(self._arrays[key])[:, self._sent[key]])
                self._sent[key] += 1
            if self._transfer is not None:
                self._transfer.send(same, into, ready, first)
            else:
                for place, tensor in zip(into, same, strict=True):
                    place.copy_(tensor)

    def _results(self, result: LayerMaps, layer: Layer) -> dict[Key, Tensor]:
        """A layer's results that are asked for, the first axis the batch, and single numbers."""
        stack, map_dtype = self.stack, self.stack.options.map_dtype
        vectors, experts = result.statistics, layer.experts
        groups = {
            "arrays": result.norms if stack.arrays else {},
            "mixing": {},
            "heads": result.head_maps,
            "standard_error": result.standard_error,
            "statistics": {} if vectors is None else _statistics(vectors, layer, self.lengths),
            CORRELATIONS: self._correlations(result, layer) if stack.correlations else {},
            ROUTING: {} if experts is None else _routing(experts),
            COMPLETENESS: result.completeness,
            KERNELS: result.kernel_errors,
        }
        for scope, sizes in result.mixing.items():
            groups["mixing"][scope] = mixing_ratio(*sizes)
        tensors: dict[Key, Tensor] = {}
        for group, named in groups.items():
            for name, tensor in named.items():
                key = group, name
                tensors[key] = self._padded(tensor, key) if self.width else tensor
        if map_dtype == AUTO:
            return tensors
        maps = [key for key in tensors if key[0] in MAPS]
        if maps and map_dtype == "float16":
            left_out = ~self._allowed(layer, tensors[maps[0]].device)  # (b, i, j)
            for group, name in maps:
                is_whole, tensor = group == "arrays", tensors[group, name]
                peak = tensor.masked_fill(left_out if is_whole else left_out[:, None], 0).amax()
                tensors[PEAKS, name if is_whole else f"single heads of {name}"] = peak
        for key in maps:
            tensors[key] = tensors[key].to(getattr(torch, map_dtype))
        return tensors

    def _padded(self, tensor: Tensor, key: Key) -> Tensor:
        """A layer's result (b, …, i, j) with zeros in the columns that it does not have."""
        if not self.width or _axes(key)[-1] != "source":
            return tensor
        n = tensor.shape[-2]
        if tensor.shape[-1] == self.width + n:  # norms behind CROSS are of both sequences
            return tensor
        # Weights and single heads are of one attention.
        return F.pad(tensor, (0, n) if "CROSS" in components_of(key[1]) else (self.width, 0))

    def _allowed(self, layer: Layer, device: torch.device) -> Tensor:
        """Pairs of real tokens that attention allows, (b, i, j)."""
        n = max(self.lengths)
        targets = real_tokens(self.lengths, n, device)
        allowed = targets[:, None, :] & layer.reach.mask(n, device)
        if self.width:
            others = real_tokens(self.other_lengths, self.width, device)[:, None].expand(-1, n, -1)
            allowed = torch.cat([others & bool(layer.others), allowed], dim=-1)
        return targets[:, :, None] & allowed

    def _correlations(self, result: LayerMaps, layer: Layer) -> dict[str, Tensor]:
        """Spearman's ρ of every two scopes, (b, scope, scope), ranked where the maps lie.

        Two scopes that have parts of the same sequence alone are compared there: the zeros that
        both have in the columns of another sequence would inflate ρ. It is NaN for scopes that the
        layer lacks.
        """
        scopes, rho = self.stack.scopes, None
        here = [scope for scope in scopes if scope in result.norms]
        compared = [(here, slice(None))]
        for kind, columns in (
            ((True, False), slice(self.width, None)),
            ((False, True), slice(self.width)),
        ):
            if self.width:
                compared.append(([scope for scope in here if holds(scope) == kind], columns))
        for names, columns in compared:
            if not names:
                continue
            # Scopes lie in front, as ranking takes them.
            maps = torch.stack([self._padded(result.norms[s], ("arrays", s)) for s in names])
            allowed = self._allowed(layer, maps.device)[..., columns]
            part = spearman_matrices(maps.transpose(0, 1)[..., columns], allowed)  # (b, s, s)
            if rho is None:
                rho = part.new_full((len(part), len(scopes), len(scopes)), torch.nan)
            at = on_device(tuple(map(scopes.index, names)), maps.device)
            rho[:, at[:, None], at] = part
        return {} if rho is None else {CORRELATIONS: rho}

    # On the way to the host -----------------------------------------------------------------------

    def leave(self) -> None:
        """Send off what waits on a GPU, behind its last kernel and before those of another batch.

        Results of several devices are asked for when they are needed.
        """
        if len(self.computed.devices) == 1:
            self._pending.leave()
            self._leaving = torch.cuda.Event()
            self._leaving.record()

    def recorded(self) -> None:
        """Copy everything that waits to pinned memory, as the last thing that a recording does."""
        self._pending.to_host()

    def replayed(self, recorded: Collector, recording: object) -> None:
        """Take over what a recorded batch of the same sizes leaves; its replay has begun."""
        self._recording = recording
        self._leaving = torch.cuda.Event()
        self._leaving.record()
        self.checks = replace(recorded.checks, pending=self._pending)
        self.computed = recorded.computed
        self._pending.replayed(recorded._pending)
        for each in recorded._recorded:
            self._send(*each)

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

    def maps(self) -> list[Maps]:
        """The maps of every sequence, if they are exact."""
        computed, words, scopes = self.computed, self.stack.layer_in_words, self.stack.scopes
        having = set[int]()
        for (group, _), some in computed.covered.items():
            having.update(some if group in (*GROUPS, CORRELATIONS) else ())
        layers = list(filter(having.__contains__, computed.readings))
        readings = list(map(computed.readings.__getitem__, layers))
        coverage = {}
        for (group, name), some in computed.covered.items():
            if group in GROUPS and some != layers:
                coverage[f"{group}/{name}"] = some
        allowed = []  # while a GPU works
        for n, others in zip_longest(map(len, self.sequences), self.other_lengths, fillvalue=0):
            allowed.append(allowed_pairs(readings, n, others, self._place))
        self.take()
        self.checks.judge()
        numbers = self._numbers()
        errors = numbers[COMPLETENESS]
        batches.check_completeness(errors, self.lens.dtype, words)
        batches.check_kernels(numbers[KERNELS], computed.precision, words)
        batches.check_range(numbers[PEAKS], words)
        worst = max(map(itemgetter(2), errors), default=math.nan)  # weights have no parts
        said = self._provenance(worst)
        packed = []
        for index, (sequence, found) in enumerate(zip(self.sequences, self._found(), strict=True)):
            axis, fields = sequence.axis, dict(found)
            correlations, routing = fields.pop(CORRELATIONS, {}), fields.pop(ROUTING, {})
            if self.others:
                n, m = len(sequence), self.other_lengths[index]
                fields["source_axis"] = self.others[index].followed_by(axis)
                fields["same_token"] = np.eye(n, m + n, k=m, dtype=bool)
            for rho in correlations.values():
                whole = np.full((len(layers), *rho.shape[1:]), np.nan)
                covered = computed.covered[CORRELATIONS, CORRELATIONS]
                whole[[layers.index(layer) for layer in covered]] = rho
                fields["correlations"] = Correlations(list(scopes), whole)
            if routing:
                covered = computed.covered[ROUTING, "experts"]
                experts = self.stack.layers[covered[-1]].experts
                assert experts is not None
                used = routing["experts"], routing["weights"], len(experts.members), axis.tokens
                every = Routing(covered, *used, routing.get("shared"))
                fields["routing"] = every.of_layers(layers)
            unordered, arrays = fields.pop("arrays", {}), {}
            for scope in filter(unordered.__contains__, scopes):
                arrays[scope] = unordered[scope]
            packed.append(
                Maps(
                    arrays=arrays,
                    layers=list(layers),
                    allowed=allowed[index],
                    completeness=worst,
                    provenance=dict(said),
                    text=sequence.whole_text or sequence.text,
                    coverage=dict(coverage),
                    grid=sequence.grid,
                    **axis.labels,
                    **fields,
                )
            )
        return packed

    def _numbers(self) -> dict[str, list[tuple[int, str, float]]]:
        """The single numbers by kind, with their layers and names, in the order of the layers."""
        arrived = self._pending.arrived()
        numbers = defaultdict[str, list[tuple[int, str, float]]](list)
        for (kind, name), layers in self.computed.covered.items():
            if kind in SINGLE:
                values = arrived[kind, name].tolist()
                numbers[kind] += zip(layers, [name] * len(layers), values, strict=True)
        for each in numbers.values():
            each.sort(key=itemgetter(0))
        return numbers

    def _found(self) -> list[dict[str, Any]]:
        """Each sequence's results by group and name, without padding; the first axis is layers."""
        small = self._pending.arrived()
        results = list[Any]()
        for _ in self.sequences:
            results.append(defaultdict(dict))
        is_padded = len(self.sequences) > 1 or len(self.sequences[0]) < self.lengths[0]
        for key in self.computed.covered:
            if key[0] in SINGLE:
                continue
            sent = self._arrays.pop(key, None)  # from now on alive as long as a result is
            whole = small[key].swapaxes(0, 1) if sent is None else sent[:, : self._sent[key]]
            for index, n in enumerate(map(len, self.sequences)):
                array = whole[index]
                if is_padded:
                    places: Any = slice(n)
                    if self.width:
                        others = range(self.other_lengths[index])
                        places = [*others, *range(self.width, self.width + n)]
                    cut = {"target": slice(n), "source": places}
                    array = array[tuple(cut.get(axis, slice(None)) for axis in _axes(key))]
                    # A view would keep the whole batch alive.
                    array = array if array.base is None else array.copy()
                results[index][key[0]][key[1]] = np.ascontiguousarray(array)
        return results

    def _provenance(self, completeness: float) -> dict[str, Any]:
        lens, stack, computed = self.lens, self.stack, self.computed
        options = stack.options
        said = batches.provenance(
            lens, options.nonlinearity, completeness, batches.TOLERANCE[lens.dtype]
        )
        said |= {"origin": options.origin, "precision": computed.precision}
        if len(computed.devices) > 1:
            said["device"] = ", ".join(map(str, computed.devices))
        if options.map_dtype != AUTO:
            said["map_dtype"] = options.map_dtype
        if stack.name:
            said |= {
                "stack": stack.name,
                "stack_layers": len(stack.layers),
                "components": batches.components_in_words(stack.layers),
                "causal": stack.name == DECODER,
            }
        if (outside := lens.adapter.outside_scopes()) is not None:
            said["outside_scopes"] = outside
        if options.nonlinearity == SHAPLEY:
            said |= {"samples": int(options.samples), "seed": int(options.seed)}
        return said
