"""Move numbers between host and device: constants, copies, large results during computation."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

# What kernels need of their device: to be the current one, and small numbers, put there once.
#
# Copying numbers there for each layer would cost more than the layer's smaller kernels. A recorded
# call (`normlens.pipeline.recordings`) reads them again whenever it is replayed, so it holds them.


_held: ContextVar[list[Tensor] | None] = ContextVar("held", default=None)


def on_device(
    numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """These numbers as a tensor on `device`; nobody may write into it."""
    tensor = _made(numbers, device, dtype)
    if (held := _held.get()) is not None:
        held.append(tensor)
    return tensor


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one for a while: kernels and events go to that one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@lru_cache(maxsize=256)
def _made(numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    # Making the tensor on the device itself would wait for the device.
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


@contextmanager
def holding() -> Iterator[list[Tensor]]:
    """Collect every constant that is used inside, which keeps it in memory."""
    held: list[Tensor] = []
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)


# Copies in memory that a GPU reads and writes without the CPU's help.


def pinned_copy(tensor: Tensor) -> Tensor:
    """A copy of a GPU's tensor in pinned memory, there when the stream has come so far.

    Tensors of the CPU are returned as they are.
    """
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a CPU's tensor on `device`; a GPU is not waited for."""
    if device.type == "cuda" and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


# Large results, copied to the host while the GPU computes the next layer.


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


class _Slots(queue.SimpleQueue[Tensor]):
    """The slots of a process that are free."""

    def __init__(self) -> None:
        super().__init__()
        self._taken, self._lock = 0, threading.Lock()

    def have(self, count: int) -> None:
        """Take so many slots, unless there are as many already."""
        with self._lock:
            for _ in range(self._taken, count):
                self.put(torch.empty(SLOT, dtype=torch.uint8, pin_memory=True))
                self._taken += 1


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


class DeviceTransfer:
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
        slots: int = SLOTS,
    ) -> None:
        """Copy tensors (…, i, j) of one shape into tensors of the CPU, once they are `ready`.

        Without an event they are ready when the current stream comes here. With `first`, target i
        has no source from `first + i + 1` on, and those are not copied.
        """
        _SLOTS.have(slots)
        if ready is None:
            ready = torch.cuda.Event()
            ready.record()
        for piece in _pieces(tensors, into, ready, first):
            self._waiting.append(piece)
            self._bytes += piece.bytes
        self._forward()

    def send_flat(self, tensor: Tensor, into: Tensor) -> None:
        """Copy numbers that lie one behind the other, by several threads."""
        for piece, place in zip(tensor.split(PIECE), into.split(PIECE), strict=True):
            self.send([piece[None]], [place[None]], slots=FEW)

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
        if size > slot.nbytes or not piece.parts[0].is_cuda:  # one long row, or a CPU's numbers
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
