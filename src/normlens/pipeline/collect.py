"""Collect the results of a batch, layer by layer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import UnsupportedModelError
from normlens.frozen.norm_maps import LayerMaps
from normlens.gpu.matmul import pinned_copy
from normlens.gpu.transfer import Outbox
from normlens.layers import Layer, Reach
from normlens.options import Request
from normlens.pipeline.layer_results import (
    CORRELATIONS,
    ROUTING,
    Columns,
    Key,
    LargeResults,
    SmallResults,
    Wanted,
    reads_others,
)
from normlens.results.files import Place
from normlens.results.formats import ALLOWED
from normlens.results.maps import Correlations
from normlens.trace.checks import Checks

# The pairs of tokens that attention allows, layer by layer.


#: Tokens up to which masks are kept for the next text of the same length.
KEPT = 512

#: A layer's reach, and whether it reads tokens of another sequence.
Reading = tuple[Reach, bool]


def allowed_pairs(readings: Sequence[Reading], n: int, others: int = 0) -> NDArray[np.bool_]:
    """[layer, target, source], for n tokens; columns of `others` of another sequence come first."""
    if len(set(readings)) == 1 and n > KEPT:  # one mask for all layers, in memory once
        mask = np.empty((1, n, others + n), dtype=bool)
        write_allowed(mask, readings[:1], n, others)
        return np.broadcast_to(mask, (len(readings), n, others + n))
    if others or n > KEPT:
        masks = np.empty((len(readings), n, others + n), dtype=bool)
        write_allowed(masks, readings, n, others)
        return masks
    return _masks(tuple(reach for reach, _ in readings), n).copy()


def write_allowed(
    masks: NDArray[np.bool_], readings: Sequence[Reading], n: int, others: int = 0
) -> None:
    """Write the same into an array, one layer after the other."""
    of_reach = {
        reach: reach.array(n) if n > KEPT else _mask(reach, n)
        for reach in {reach for reach, _ in readings}
    }
    for mask, (reach, reads) in zip(masks, readings, strict=True):
        mask[:, :others] = reads
        mask[:, others:] = of_reach[reach]


@lru_cache(maxsize=256)
def _mask(reach: Reach, n: int) -> NDArray[np.bool_]:
    return reach.array(n)


@lru_cache(maxsize=64)
def _masks(reaches: tuple[Reach, ...], n: int) -> NDArray[np.bool_]:
    return np.stack([_mask(reach, n) for reach in reaches])


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

    Every number that is asked of a GPU makes it wait; here that happens once, at the end. Large
    results leave at once (`outbox`). A batch that is being recorded has no outbox. Those of one
    text may go to a file, where `place` gives them room. Where layers lie on several devices, their
    results gather on `home`.
    """

    def __init__(
        self,
        columns: Columns,
        request: Request,
        checks: Checks,
        *,
        outbox: Outbox | None = None,
        place: Place | None = None,
        home: torch.device | None = None,
    ):
        self.checks = checks
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
        self._outbox = outbox
        self._place, self._home = place, home
        self._large = LargeResults(columns, len(request.layers), outbox, place)
        self._reaches: dict[int, Reading] = {}
        self._shapes: dict[Key, torch.Size] = {}
        #: By kind: layers, names and numbers, and the numbers alone, once settled.
        self._numbers: dict[str, list[tuple[int, str, Tensor]]] = {}
        self._stacked: dict[str, Tensor] = {}
        self._small = SmallResults(outbox)
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
            self._numbers.setdefault(kind, []).extend((index, *item) for item in named.items())
        large: dict[Key, Tensor] = {}
        for key, tensor in tensors.items():
            self._check_shape(key, tensor, index)
            self.covered.setdefault(key, []).append(index)
            if self._large.takes(key, tensor):
                large[key] = tensor
            else:
                self._small.add(key, tensor)
        if large:
            self._large.add(large, layer.reach)
        self._small.make_room()

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
        if self._outbox is None or len(self.devices) > 1:
            return
        self.settle()
        self._bring_numbers_home()
        self._small.leave()
        self._leaving = torch.cuda.Event()
        self._leaving.record()

    # Recorded and replayed ------------------------------------------------------------------------

    def settle(self) -> None:
        """Put everything that waits on the device into a few tensors; nothing is waited for."""
        self.checks.settle()
        self._stacked = {
            kind: torch.stack([number for *_, number in named])
            for kind, named in self._numbers.items()
            if named
        }
        self._small.settle()

    def bring_home(self) -> None:
        """Copy what is settled to pinned memory, as the last thing that the device does."""
        self._bring_numbers_home()
        self._small.bring_home()

    def _bring_numbers_home(self) -> None:
        self.checks.bring_home()
        self._stacked = {kind: pinned_copy(numbers) for kind, numbers in self._stacked.items()}

    def replayed(self, recorded: Collected, recording: object) -> None:
        """Take over what a recorded batch of the same lengths leaves; its replay has begun.

        The recording stays in memory until its results are taken.
        """
        self._recording = recording
        self._leaving = torch.cuda.Event()
        self._leaving.record()
        self.checks = copy(recorded.checks)
        self.precision, self.experts = recorded.precision, recorded.experts
        self.covered, self.devices = recorded.covered, recorded.devices
        self._reaches, self._shapes = recorded._reaches, recorded._shapes
        self._numbers, self._stacked = recorded._numbers, recorded._stacked
        self._small.replayed(recorded._small)
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
                self.checks.take()
                self._stacked = {kind: each.clone() for kind, each in self._stacked.items()}
                self._small.take()
            self._leaving = self._recording = None

    def numbers(self, kind: str) -> list[tuple[int, str, float]]:
        """The numbers of one kind with their layers and names, in the order of the layers."""
        named = self._numbers.get(kind)
        if not named:
            return []
        stacked = self._stacked.get(kind)
        if stacked is None:
            stacked = torch.stack([number for *_, number in named])
        pairs = zip(named, stacked.tolist(), strict=True)
        return [(layer, name, number) for (layer, name, _), number in pairs]

    def sequences(self) -> list[dict[str, dict[str, NDArray[Any]]]]:
        """Each sequence's results by group and name, without padding; the first axis is layers."""
        done = self._small.arrived()
        done |= {key: [array] for key, array in self._large.arrived().items()}
        results: list[dict[str, dict[str, NDArray[Any]]]] = [{} for _ in self.lengths]
        for key in self.covered:
            group, name = key
            pieces = done[key]
            whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
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
        masks = self._place(ALLOWED, shape, np.dtype(np.uint8)).view(np.bool_)
        write_allowed(masks, readings, n, others)
        return masks
