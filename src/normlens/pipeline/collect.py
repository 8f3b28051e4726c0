"""Collect the results of a batch, layer by layer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import UnsupportedModelError
from normlens.frozen.norm_maps import LayerMaps
from normlens.gpu.matmul import pinned_copy
from normlens.gpu.transfer import Outbox
from normlens.layers import Layer, Reach
from normlens.options import AUTO
from normlens.pipeline.layer_results import (
    CORRELATIONS,
    ROUTING,
    Columns,
    Key,
    LargeResults,
    SmallResults,
    Wanted,
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
        scopes: Sequence[str],
        checks: Checks,
        arrays: bool = True,
        correlations: bool = False,
        layers: int = 0,
        outbox: Outbox | None = None,
        map_dtype: str = AUTO,
        place: Place | None = None,
        home: torch.device | None = None,
    ):
        self.checks = checks
        self.columns = columns
        self.lengths = columns.lengths
        self.scopes = list(scopes)
        self.precision: str | None = None
        #: Where layers were computed.
        self.devices: list[torch.device] = []
        self.experts = 0  # of a layer that has some
        #: The layers of each result: those that have what it shows.
        self.covered: dict[Key, list[int]] = {}
        kind = None if map_dtype == AUTO else getattr(torch, map_dtype)
        self._wanted = Wanted(columns, self.scopes, arrays, correlations, kind)
        self._outbox = outbox
        self._place, self._home = place, home
        self._large = LargeResults(columns, layers, outbox, place)
        self._reaches: dict[int, Reading] = {}
        self._shapes: dict[Key, torch.Size] = {}
        self._errors: list[tuple[int, str, Tensor]] = []
        self._kernel_errors: list[tuple[int, str, Tensor]] = []
        self._peaks: list[tuple[int, str, Tensor]] = []
        self._small = SmallResults(outbox)
        self._numbers: list[Tensor] = []  # errors, those of kernels, and peaks, once settled
        self._leaving: torch.cuda.Event | None = None  # from when on all small results are home
        self._recording: object = None
        self._taking = threading.Lock()

    def add(self, result: LayerMaps, index: int, layer: Layer) -> None:
        """Keep the results of layer `index`."""
        found = self._wanted.of(result, index, layer)
        if (here := found.device) is not None:
            self.devices = list(dict.fromkeys([*self.devices, here]))
            if self._home not in (here, None):
                found = found.on(self._home)
        self._reaches[index] = found.reach, found.reads_others
        # Layers of experts have no kernels; the precision of the other layers' is what matters.
        if found.kernel_errors or not self._kernel_errors:
            self.precision = found.precision or self.precision
        self.experts = found.experts or self.experts
        self._errors += [(index, scope, error) for scope, error in found.errors]
        self._kernel_errors += [(index, kind, error) for kind, error in found.kernel_errors]
        self._peaks += [(index, name, peak) for name, peak in found.peaks]
        large: list[Key] = []
        for key, tensor in found.tensors.items():
            self._check_shape(key, tensor, index)
            self.covered.setdefault(key, []).append(index)
            if self._large.takes(key, tensor):
                large.append(key)
            else:
                self._small.add(key, tensor)
        if large:
            self._large.add(found, large)
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
        self._numbers = [
            torch.stack([tensor for *_, tensor in errors]) if errors else torch.zeros(0)
            for errors in (self._errors, self._kernel_errors, self._peaks)
        ]
        self._small.settle()

    def bring_home(self) -> None:
        """Copy what is settled to pinned memory, as the last thing that the device does."""
        self._bring_numbers_home()
        self._small.bring_home()

    def _bring_numbers_home(self) -> None:
        self.checks.bring_home()
        self._numbers = [pinned_copy(numbers) for numbers in self._numbers]

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
        self._errors, self._kernel_errors = recorded._errors, recorded._kernel_errors
        self._peaks = recorded._peaks
        self._numbers = recorded._numbers
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

    def wait(self) -> None:
        """Wait for what has been sent, before anything else is asked of the device."""
        self.take()

    @property
    def pending(self) -> bool:
        """Whether results still lie where the next replay would write."""
        return self._leaving is not None

    def take(self) -> None:
        """Bring home what is sent, and copy what a replay leaves: the next one writes over it.

        The thread of the next replay may ask for this, too.
        """
        with self._taking:
            self._large.wait()
            if self._leaving is None:
                return
            self._leaving.synchronize()
            if self._recording is not None:
                self.checks.take()
                self._numbers = [numbers.clone() for numbers in self._numbers]
                self._small.take()
            self._leaving = self._recording = None

    def errors(self) -> list[tuple[int, str, float]]:
        """Every completeness error, with its layer and scope, in the order of the layers."""
        return self._brought(0, self._errors)

    def kernel_errors(self) -> list[tuple[int, str, float]]:
        """How far a kernel's parts miss their sum, and its norms a sample, layer by layer."""
        return self._brought(1, self._kernel_errors)

    def peaks(self) -> list[tuple[int, str, float]]:
        """The largest entry of every map that is returned in float16, layer by layer."""
        return self._brought(2, self._peaks)

    def _brought(
        self, place: int, errors: list[tuple[int, str, Tensor]]
    ) -> list[tuple[int, str, float]]:
        if not errors:
            return []
        stacked = self._numbers[place] if self._numbers else torch.stack([e for *_, e in errors])
        numbers = stacked.tolist()
        named = zip(errors, numbers, strict=True)
        return [(layer, scope, number) for (layer, scope, _), number in named]

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
