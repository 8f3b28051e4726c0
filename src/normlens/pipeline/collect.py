"""Collect the results of a batch, layer by layer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import UnsupportedModelError
from normlens.frozen.norm_maps import LayerMaps
from normlens.gpu.transfer import DeviceTransfer
from normlens.layers import Layer, Reach
from normlens.options import Request
from normlens.pipeline.layer_results import (
    CORRELATIONS,
    ROUTING,
    Columns,
    Key,
    LargeResults,
    Wanted,
    reads_others,
)
from normlens.results.files import Place
from normlens.results.maps import Correlations
from normlens.trace.checks import Checks

# The pairs of tokens that attention allows, layer by layer.


#: A layer's reach, and whether it reads tokens of another sequence.
Reading = tuple[Reach, bool]


def allowed_pairs(readings: Sequence[Reading], n: int, others: int = 0) -> NDArray[np.bool_]:
    """[layer, target, source], for n tokens; columns of `others` of another sequence come first."""
    shared = len(set(readings)) == 1  # one mask for all layers, in memory once
    masks = np.empty((1 if shared else len(readings), n, others + n), dtype=bool)
    write_allowed(masks, readings[: len(masks)], n, others)
    return np.broadcast_to(masks, (len(readings), n, others + n)) if shared else masks


def write_allowed(
    masks: NDArray[np.bool_], readings: Sequence[Reading], n: int, others: int = 0
) -> None:
    """Write the same into an array, one layer after the other."""
    of_reach = {reach: reach.array(n) for reach in {reach for reach, _ in readings}}
    for mask, (reach, reads) in zip(masks, readings, strict=True):
        mask[:, :others] = reads
        mask[:, others:] = of_reach[reach]


# Results of a batch as they come in, layer by layer, and what they depend on.


#: Kinds of numbers that come with a layer: errors of completeness by scope; how far a kernel's
#: parts miss their sum, and its norms a sample; the largest entry of each map in float16.
COMPLETENESS, KERNELS, PEAKS = "completeness", "kernels", "peaks"

Name = TypeVar("Name")


def _on(device: torch.device | None, tensors: dict[Name, Tensor]) -> dict[Name, Tensor]:
    """The same tensors on another device."""
    # A copy to the CPU that is not waited for would be read before it is there.
    soon = device is not None and device.type == "cuda"
    return {name: tensor.to(device, non_blocking=soon) for name, tensor in tensors.items()}


class Collected:
    """A batch's results. Small ones stay on their device until all layers are through.

    They wait with the numbers of the checks. Large results leave at once (`transfer`), unless the
    batch is being recorded. Those of one text may go to a file, where `place` gives them room.
    Where layers lie on several devices, their results gather on `home`.
    """

    def __init__(
        self,
        columns: Columns,
        request: Request,
        checks: Checks,
        *,
        transfer: DeviceTransfer | None = None,
        place: Place | None = None,
        home: torch.device | None = None,
    ):
        self.columns = columns
        self.lengths = columns.lengths
        self.scopes = list(request.scopes)
        self.precision: str | None = None
        #: Where layers were computed.
        self.devices: list[torch.device] = []
        self.experts = 0  # of a layer that has some
        #: The layers of each result: those that have what it shows.
        self.covered: dict[Key, list[int]] = {}
        self._wanted = Wanted(columns, request)
        self._transfer = transfer
        self._place, self._home = place, home
        self._large = LargeResults(columns, len(request.layers), transfer, place)
        self._reaches: dict[int, Reading] = {}
        self._shapes: dict[Key, torch.Size] = {}
        self._numbers: dict[str, list[tuple[int, str]]] = {}  # layers and names, by kind
        self.checks, self._pending = checks, checks.pending
        self._leaving: torch.cuda.Event | None = None  # from when on all small results are home
        self._recording: object = None
        self._taking = threading.Lock()

    def add(self, result: LayerMaps, index: int, layer: Layer) -> None:
        """Keep the results of layer `index`."""
        tensors, peaks = self._wanted.of(result, layer)
        kernels = {"sum": result.kernel_error, "sample": result.sampled_error}
        numbers = {
            COMPLETENESS: result.completeness,
            KERNELS: {kind: error for kind, error in kernels.items() if error is not None},
            PEAKS: peaks,
        }
        every = [*tensors.values(), *(n for named in numbers.values() for n in named.values())]
        if every:
            here = every[0].device
            self.devices = list(dict.fromkeys([*self.devices, here]))
            if self._home not in (here, None):
                tensors = _on(self._home, tensors)
                numbers = {kind: _on(self._home, named) for kind, named in numbers.items()}
        self._reaches[index] = layer.reach, reads_others(layer)
        # Layers of experts have no kernels; the precision of the other layers' is what matters.
        if numbers[KERNELS] or not self._numbers.get(KERNELS):
            self.precision = result.precision or self.precision
        if layer.experts is not None:
            self.experts = len(layer.experts.members)
        for kind, named in numbers.items():
            for name, number in named.items():
                self._numbers.setdefault(kind, []).append((index, name))
                self._pending.add(kind, number)
        large: dict[Key, Tensor] = {}
        for key, tensor in tensors.items():
            self._check_shape(key, tensor, index)
            self.covered.setdefault(key, []).append(index)
            if self._large.takes(key, tensor):
                large[key] = tensor
            else:
                self._pending.add(key, tensor)
        if large:
            self._large.add(large, layer.reach)
        self._pending.make_room()

    def _check_shape(self, key: Key, tensor: Tensor, index: int) -> None:
        shape = self._shapes.setdefault(key, tensor.shape)
        if shape != tensor.shape:
            raise UnsupportedModelError(
                f"{key[0]} of {key[1]} have another shape in layer {index} "
                f"{tuple(tensor.shape[1:])} than in layer {self.covered[key][-1]} "
                f"{tuple(shape[1:])}; analyse such layers one by one (`layers`)"
            )

    def leave(self) -> None:
        """Send off what waits on a GPU, behind its last kernel and before those of another batch.

        Results of several devices are asked for when they are needed.
        """
        if self._transfer is None or len(self.devices) > 1:
            return
        self._pending.stack_pending()
        self._pending.leave()
        self._leaving = torch.cuda.Event()
        self._leaving.record()

    # Recorded and replayed ------------------------------------------------------------------------

    def stack_pending(self) -> None:
        """Put everything that waits on the device into a few tensors; nothing is waited for."""
        self._pending.stack_pending()

    def to_host(self) -> None:
        """Copy what is stacked to pinned memory, as the last thing that the device does."""
        self._pending.to_host()

    def replayed(self, recorded: Collected, recording: object) -> None:
        """Take over what a recorded batch of the same lengths leaves; its replay has begun.

        The recording stays in memory until its results are taken.
        """
        self._recording = recording
        self._leaving = torch.cuda.Event()
        self._leaving.record()
        self.checks = replace(recorded.checks, pending=self._pending)
        self.precision, self.experts = recorded.precision, recorded.experts
        self.covered, self.devices = recorded.covered, recorded.devices
        self._reaches, self._shapes = recorded._reaches, recorded._shapes
        self._numbers = recorded._numbers
        self._pending.replayed(recorded._pending)
        self._large.replayed(recorded._large)

    # At the end -----------------------------------------------------------------------------------

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

    @property
    def pending(self) -> bool:
        """Whether results still lie where the next replay would write."""
        return self._leaving is not None

    def take(self) -> None:
        """Wait for what is sent, and copy what a replay leaves: the next one writes over it.

        Nothing else may be asked of the device before. The thread of the next replay may ask for
        this, too.
        """
        with self._taking:
            self._large.wait()
            if self._leaving is None:
                return
            self._leaving.synchronize()
            if self._recording is not None:
                self._pending.take()
            self._leaving = self._recording = None

    def numbers(self, kind: str) -> list[tuple[int, str, float]]:
        """The numbers of one kind with their layers and names, in the order of the layers."""
        if kind not in self._numbers:
            return []
        numbers = self._pending.arrived()[kind].tolist()
        return [(*of, number) for of, number in zip(self._numbers[kind], numbers, strict=True)]

    def sequences(self) -> list[dict[str, dict[str, NDArray[Any]]]]:
        """Each sequence's results by group and name, without padding; the first axis is layers."""
        small, large = self._pending.arrived(), self._large.arrived()
        results: list[dict[str, dict[str, NDArray[Any]]]] = [{} for _ in self.lengths]
        for key in self.covered:
            group, name = key
            whole = large[key] if key in large else small[key].swapaxes(0, 1)
            for index in range(len(self.lengths)):
                # a view would keep the whole batch alive
                array = np.ascontiguousarray(self.columns.real(whole[index], group, name, index))
                alone = array if len(self.lengths) == 1 or array.base is None else array.copy()
                results[index].setdefault(group, {})[name] = alone
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
        readings, n = [self._reaches[layer] for layer in self.layers], self.lengths[index]
        others = self.columns.others[index] if self.columns.width else 0
        if self._place is None:
            return allowed_pairs(readings, n, others)
        shape = len(readings), n, others + n
        masks = self._place("allowed", shape, np.dtype(np.bool_))
        write_allowed(masks, readings, n, others)
        return masks
