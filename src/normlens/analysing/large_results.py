"""A batch's large results, which leave their device or memory while the next layer is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.analysing.columns import CORRELATIONS, ROUTING, Columns
from normlens.analysing.layer_results import Key, LayerResults
from normlens.analysing.outbox import Outbox
from normlens.components import Reach
from normlens.results.axes import axes_of
from normlens.results.growing_file import Place

#: From so many bytes on a layer's result leaves at once.
SENT_AT_ONCE = 1 << 20


class _Recorded(NamedTuple):
    """Results of a recorded layer, which are sent whenever it is replayed."""

    found: LayerResults
    keys: Sequence[Key]
    ready: torch.cuda.Event


class LargeResults:
    """Results on their way to the CPU; without an outbox they are kept for a replay.

    `layers` is how many layers may come. With `place` every result of pairs of tokens goes to a
    file, from a CPU as well; there is only one text then.
    """

    def __init__(
        self, columns: Columns, layers: int, outbox: Outbox | None, place: Place | None = None
    ):
        self._columns, self._layers, self._outbox, self._in_file = columns, layers, outbox, place
        self._recorded: list[_Recorded] = []
        self._arriving: dict[Key, NDArray[Any]] = {}  # (b, layer, …)
        self._count: dict[Key, int] = {}  # layers that are there or under way

    def takes(self, key: Key, tensor: Tensor) -> bool:
        """Whether a result is large, or goes to a file."""
        if self._in_file is not None:
            return _is_of_pairs(key)
        return bool(self._layers) and tensor.is_cuda and tensor.nbytes >= SENT_AT_ONCE

    def add(self, found: LayerResults, keys: Sequence[Key]) -> None:
        """Send some of a layer's results."""
        if self._in_file is not None:
            # Types of many bytes first, so that each array begins at a multiple of its own.
            keys = sorted(keys, key=lambda key: -found.tensors[key].element_size())
            for key in keys if self._outbox is None else ():
                self._place(key, found.tensors[key]).copy_(found.tensors[key])
        if self._outbox is not None:
            self._send(found, keys, None)
            return
        if self._in_file is not None:
            return
        ready = torch.cuda.Event(external=True)
        ready.record()
        self._recorded.append(_Recorded(found, keys, ready))

    def replayed(self, recorded: LargeResults) -> None:
        """Send what a recorded batch has computed anew."""
        for found, keys, ready in recorded._recorded:
            self._send(found, keys, ready)

    def _send(
        self, found: LayerResults, keys: Sequence[Key], ready: torch.cuda.Event | None
    ) -> None:
        """Send results to arrays of the CPU, those of one form together."""
        assert self._outbox is not None
        alike: dict[Any, list[Key]] = {}
        for key in keys:
            tensor = found.tensors[key]
            form = tensor.shape, tensor.dtype, self._first(key, found.reach)
            alike.setdefault(form, []).append(key)
        for (*_, first), same in alike.items():
            self._outbox.send(
                [found.tensors[key] for key in same],
                [self._place(key, found.tensors[key]) for key in same],
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
        if self._outbox is not None:
            self._outbox.wait()

    def arrived(self) -> Mapping[Key, NDArray[Any]]:
        """Everything that was sent, (b, layer, …) by key."""
        self.wait()
        arrived, self._arriving = self._arriving, {}
        return {key: array[:, : self._count[key]] for key, array in arrived.items()}


def _is_of_pairs(key: Key) -> bool:
    """Whether a result has an entry for each target and source."""
    return key[0] not in (CORRELATIONS, ROUTING) and axes_of(*key)[-2:] == ("target", "source")
