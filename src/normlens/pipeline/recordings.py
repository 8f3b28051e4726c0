"""Record batches of one shape as CUDA graphs, and replay them.

Texts differ in length, so short ones are padded to a few sizes, whose recordings they share.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import nn

from normlens.errors import is_out_of_memory
from normlens.gpu.graphs import ModelState
from normlens.inputs.text import Encoded
from normlens.layers import FeedForward
from normlens.trace.locking import process_lock
from normlens.trace.run import padding_id

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Texts up to the first length are padded to multiples of the second, longer ones of the next.
SIZES = ((128, 16), (256, 32), (512, 64))
#: Operations that padding may add to the feed-forward stages: they take less time than launching
#: the kernels of a batch one by one.
ADDED = 4e12
#: Batches of one shape before the next one is recorded.
BEFORE = 1
#: Recordings of one lens; the least recently used one makes room.
RECORDINGS = 32
#: Changes of a model after which it is no longer recorded.
CHANGES = 16
#: Bytes that all recordings of a lens may keep on the device.
KEPT = 8 << 30
#: Shapes whose batches are counted.
COUNTED = 512
#: Failures after which a shape is not recorded: a GPU that others use may refuse it once.
FAILURES = 2


class Recorded(Protocol):
    """What is recorded of one kind of batch."""

    state: ModelState
    used: threading.Lock
    bytes: int

    @property
    def pending(self) -> bool:
        """Whether the next replay has to wait for the end of the last one."""
        ...


R = TypeVar("R", bound=Recorded)


def padded(lens: Lens, items: Sequence[Encoded]) -> list[Encoded]:
    """The texts of a batch with padding up to a common size, where that changes no number.

    No token attends to the padding, so it is analysed as any other token is, and then cut off.
    """
    lengths = [len(item) for item in items]
    longest = max(lengths)
    steps = [step for up_to, step in SIZES if longest <= up_to]
    is_text = all(item.signal is None and item.source is None for item in items)
    other_reads = any(layer.others for layer in lens.layers)
    if not steps or not is_text or other_reads or lens.adapter.padding_leaks:
        return list(items)
    size = -(-longest // steps[0]) * steps[0]
    windows = [layer.reach.back for layer in lens.layers if layer.reach.back is not None]
    if size > (lens.max_tokens or size) or size - min(lengths) > min(windows, default=size):
        return list(items)  # behind the end of a text a window may hold nothing but padding
    blocks = [layer.feed_forward for layer in lens.layers]
    each = sum(2 * b.down.weight.numel() for b in blocks if isinstance(b, FeedForward))
    if each * sum(size**2 - n**2 for n in lengths) > ADDED:
        return list(items)
    unused = padding_id(lens.adapter)
    return [_padded(item, size - n, unused) for item, n in zip(items, lengths, strict=True)]


def _padded(item: Encoded, count: int, unused: int) -> Encoded:
    return replace(
        item,
        ids=item.ids + [unused] * count,
        tokens=item.tokens + [""] * count,
        special=item.special + [True] * count,
        type_ids=None if item.type_ids is None else item.type_ids + [0] * count,
        unattended=item.unattended + count,
    )


#: One thread of the process records at a time.
_capturing = threading.Lock()


class Recordings:
    """The recordings of one lens."""

    def __init__(self) -> None:
        self._counts: OrderedDict[Hashable, int] = OrderedDict()
        self._recorded: OrderedDict[Hashable, Any] = OrderedDict()
        self._failures: Counter[Hashable] = Counter()
        self._dropped: Counter[Hashable] = Counter()  # how often each made room for others
        self._changes = 0  # of the model since the first recording
        self._lock = process_lock()

    def __reduce__(self) -> tuple[type[Recordings], tuple[()]]:
        return Recordings, ()  # a copy of a lens begins without any

    @contextmanager
    def acquire(
        self, model: nn.Module, key: Hashable, record: Callable[[ModelState], R]
    ) -> Iterator[R | None]:
        """The recording of batches with this key, for this thread alone, if there is one.

        The second batch is recorded by `record`, which is given the state of the model; later ones
        of a key whose recording has made room for others. Batches that follow each other have two
        recordings in turn, so that a GPU does not wait for what it has computed to be taken, nor
        one thread for another.
        """
        recording = self._find(model, key, record, BEFORE)
        if recording is None:
            yield None
            return
        would_wait = recording.pending or recording.used.locked()
        if would_wait and 2 * recording.bytes <= KEPT:
            recording = self._find(model, (key, "next"), record, 0) or recording
        with recording.used:
            yield recording

    def forget(self) -> bool:
        """Drop every recording, whether there were any: the model has changed, or memory is out."""
        with self._lock:
            if not self._recorded:
                return False
            for each in (self._recorded, self._counts, self._dropped):
                each.clear()  # keys hold products of weights
            self._changes += 1
            return True

    def _find(
        self, model: nn.Module, key: Hashable, record: Callable[[ModelState], R], before: int
    ) -> R | None:
        """The recording with this key; it is made if more than `before` batches asked for it."""
        with self._lock:
            recording = self._recorded.get(key)
            if recording is not None and recording.state.holds_memory():
                self._recorded.move_to_end(key)
                return recording
            if recording is not None:
                self.forget()
            if self._failures[key] >= FAILURES or self._changes > CHANGES:
                return None
            self._counts[key] = self._counts.pop(key, 0) + 1
            while len(self._counts) > COUNTED:
                self._counts.popitem(last=False)
            if self._counts[key] <= before << self._dropped[key]:
                return None
        # To record is to run the model, which another thread may hold while it asks for a recording
        # itself. So no lock is waited for here, and none that others wait for is held.
        if not _capturing.acquire(blocking=False):
            return None
        try:
            state = ModelState.of(model)
            recording = None if state is None else record(state)
        except RuntimeError as error:
            # Something waits for the GPU on the way, which a recording cannot.
            with self._lock:
                if len(self._failures) >= COUNTED:
                    self._failures.clear()
                self._failures[key] += 1
                if is_out_of_memory(error):
                    self._recorded.clear()
            return None
        finally:
            _capturing.release()
        with self._lock:
            if recording is not None and recording.bytes > KEPT:
                self._failures[key] = FAILURES
                return None
            if recording is not None:
                self._recorded[key] = recording
            while len(self._recorded) > RECORDINGS or (
                len(self._recorded) > 1 and sum(r.bytes for r in self._recorded.values()) > KEPT
            ):
                dropped, _ = self._recorded.popitem(last=False)
                if len(self._dropped) >= COUNTED:
                    self._dropped.clear()
                self._dropped[dropped] += 1
                self._counts.pop(dropped, None)
        return recording
