"""Copy large results to the host while the GPU computes the next layer."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

#: Pinned memory: so many slots of so many bytes, for all calls of a process. Taking more while a
#: GPU works would wait for it, so all are taken with the first large result.
SLOTS, SLOT = 32, 8 << 20
#: Of them, those that are enough for small results.
FEW = 4
#: Bytes on the device that may wait for a slot; then the call waits, too.
WAITING = 2 << 30
#: Rows of a causal map that are sent together at most; sources behind the last are left out.
ROWS = 128
#: Numbers of a flat tensor that are sent together.
PIECE = 1 << 18
#: Threads that write; most of their work is the operating system's, fresh pages for the arrays.
WRITERS = 8


class _Slots:
    """The slots of a process that are free."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        self._taken, self._lock = 0, threading.Lock()

    def have(self, count: int) -> None:
        """Take so many slots, unless there are as many already."""
        with self._lock:
            for _ in range(self._taken, count):
                self._free.put(torch.empty(SLOT, dtype=torch.uint8, pin_memory=True))
                self._taken += 1

    def get(self, block: bool = True) -> Tensor:
        """A free slot; `queue.Empty` where there is none and nobody waits for one."""
        return self._free.get(block)

    def put(self, slot: Tensor) -> None:
        """Give a slot back."""
        self._free.put(slot)


_SLOTS = _Slots()


@lru_cache(maxsize=1)
def _writers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WRITERS, thread_name_prefix="normlens-writer")


class _Piece(NamedTuple):
    """Parts of some tensors that fit into a slot together, and where they go."""

    parts: list[Tensor]
    into: list[Tensor]
    ready: torch.cuda.Event

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class Outbox:
    """What one call sends from a GPU."""

    def __init__(self, device: torch.device):
        self._device = device
        self._waiting: deque[_Piece] = deque()
        self._bytes = 0  # of the pieces that wait
        self._writing: deque[Future[None]] = deque()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

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
        _SLOTS.have(SLOTS)
        self._send_all(tensors, into, ready, first)

    def _send_all(
        self,
        tensors: Sequence[Tensor],
        into: Sequence[Tensor],
        ready: torch.cuda.Event | None = None,
        first: int | None = None,
    ) -> None:
        if ready is None:
            ready = torch.cuda.Event()
            ready.record()
        for piece in _pieces(tensors, into, ready, first):
            self._waiting.append(piece)
            self._bytes += piece.bytes
        self._forward()

    def send_flat(self, tensor: Tensor, into: Tensor) -> None:
        """Copy numbers that lie one behind the other, by several threads."""
        _SLOTS.have(FEW)
        for piece, place in zip(tensor.split(PIECE), into.split(PIECE), strict=True):
            self._send_all([piece[None]], [place[None]])

    def _forward(self) -> None:
        """Send what waits, as far as there are slots; wait for more only if too much waits."""
        while self._waiting:
            try:
                slot = _SLOTS.get(block=self._bytes > WAITING)
            except queue.Empty:
                return
            self._send(self._waiting.popleft(), slot)

    def _send(self, piece: _Piece, slot: Tensor) -> None:
        self._bytes -= piece.bytes
        kind, shape = piece.into[0].dtype, piece.parts[0].shape
        size = len(piece.parts) * shape.numel() * kind.itemsize
        if size > slot.nbytes:  # one row of one tensor
            _SLOTS.put(slot)
            _write(torch.stack(piece.parts).cpu(), piece.into)
            return
        pinned = slot[:size].view(kind).view(len(piece.parts), *shape)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(piece.ready)
            together = torch.stack(piece.parts).to(kind)
            pinned.copy_(together, non_blocking=True)
            arrived = torch.cuda.Event(blocking=True)
            arrived.record()
            for part in piece.parts:
                part.record_stream(self._stream)

        def write() -> None:
            try:
                arrived.synchronize()
                _write(pinned, piece.into)
            finally:
                _SLOTS.put(slot)

        self._writing.append(_writers().submit(write))

    def wait(self) -> None:
        """Return when everything that was sent has arrived."""
        while self._waiting:
            self._send(self._waiting.popleft(), _SLOTS.get())
        while self._writing:
            self._writing.popleft().result()


def _pieces(
    tensors: Sequence[Tensor], into: Sequence[Tensor], ready: torch.cuda.Event, first: int | None
) -> Iterator[_Piece]:
    """Some rows of some tensors at a time."""
    *batch, n, columns = tensors[0].shape
    row = max(1, prod(batch) * columns * into[0].element_size())  # bytes, of one tensor
    at_once = max(1, SLOT // row)  # tensors, of one row
    for begin in range(0, len(tensors), at_once):
        some = slice(begin, begin + at_once)
        rows = max(1, SLOT // (row * len(tensors[some])))
        rows = rows if first is None else min(rows, ROWS)
        for start in range(0, n, rows):
            stop = min(n, start + rows)
            end = columns if first is None else first + stop
            place = (..., slice(start, stop), slice(end))
            yield _Piece(
                [tensor[place] for tensor in tensors[some]],
                [array[place] for array in into[some]],
                ready,
            )


def _write(pieces: Tensor, into: Sequence[Tensor]) -> None:
    for place, piece in zip(into, pieces, strict=True):
        place.numpy()[...] = piece.numpy()
