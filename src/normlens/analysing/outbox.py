"""Large results on their way from a GPU to the CPU, while the GPU goes on with the next layer.

A copy into ordinary memory holds up whoever asks for it. So results leave on a stream of their own,
through pinned memory, and other threads write them into the arrays that the user gets.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, lru_cache
from math import prod

import torch
from torch import Tensor

#: Pinned memory: so many slots of so many bytes, for all calls of a process. Taking more while a
#: GPU works would wait for it.
SLOTS, SLOT = 32, 8 << 20
#: Rows of a causal map that are sent together at most; sources behind the last are left out.
ROWS = 128
#: Numbers of a flat tensor that are sent together.
PIECE = 1 << 18
#: Threads that write; most of their work is the operating system's, fresh pages for the arrays.
WRITERS = 8


@lru_cache(maxsize=1)
def _slots() -> queue.SimpleQueue[Tensor]:
    slots: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
    for _ in range(SLOTS):
        slots.put(torch.empty(SLOT, dtype=torch.uint8, pin_memory=True))
    return slots


class Outbox:
    """What one call sends from a GPU."""

    def __init__(self, device: torch.device):
        self._device = device
        self._writing: deque[Future[None]] = deque()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

    @cached_property
    def _writers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(WRITERS, thread_name_prefix="normlens-writer")

    def send(
        self,
        tensors: Sequence[Tensor],
        into: Sequence[Tensor],
        ready: torch.cuda.Event | None = None,
        first: int | None = None,
    ) -> None:
        """Copy tensors (…, i, j) of one shape into tensors of the CPU, once they are `ready`.

        Without an event they are ready when the current stream comes here. With `first`, target i
        has no source from `first + i + 1` on, and those are not copied.
        """
        *batch, n, columns = tensors[0].shape
        row = prod(batch) * columns * into[0].element_size()  # bytes of a row of one tensor
        if ready is None:
            ready = torch.cuda.Event()
            ready.record()
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            at_once = max(1, SLOT // row)  # tensors, if they have one row
            for begin in range(0, len(tensors), at_once):
                some = slice(begin, begin + at_once)
                rows = max(1, SLOT // (row * len(tensors[some])))
                rows = rows if first is None else min(rows, ROWS)
                for start in range(0, n, rows):
                    stop = min(n, start + rows)
                    place = (..., slice(start, stop), slice(_end(columns, first, stop)))
                    pieces = [tensor[place] for tensor in tensors[some]]
                    self._send(pieces, [array[place] for array in into[some]])
            for tensor in tensors:
                tensor.record_stream(self._stream)

    def _send(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        together = torch.stack(list(pieces)).to(into[0].dtype)
        if together.nbytes > SLOT:  # one row of one tensor
            _write(together.cpu(), into)
            return
        slot = _slots().get()
        pinned = slot[: together.nbytes].view(together.dtype).view(together.shape)
        pinned.copy_(together, non_blocking=True)
        arrived = torch.cuda.Event(blocking=True)
        arrived.record()

        def write() -> None:
            try:
                arrived.synchronize()
                _write(pinned, into)
            finally:
                _slots().put(slot)

        self._writing.append(self._writers.submit(write))

    def send_flat(self, tensor: Tensor, into: Tensor) -> None:
        """Copy numbers that lie one behind the other, by several threads."""
        for piece, place in zip(tensor.split(PIECE), into.split(PIECE), strict=True):
            self.send([piece[None]], [place[None]])

    def wait(self) -> None:
        """Return when everything that was sent has arrived."""
        while self._writing:
            self._writing.popleft().result()

    def close(self) -> None:
        """Let the threads go, once everything has arrived."""
        if "_writers" in self.__dict__:
            self._writers.shutdown()


def _end(columns: int, first: int | None, stop: int) -> int:
    return columns if first is None else first + stop


def _write(pieces: Tensor, into: Sequence[Tensor]) -> None:
    for place, piece in zip(into, pieces, strict=True):
        place.numpy()[...] = piece.numpy()
