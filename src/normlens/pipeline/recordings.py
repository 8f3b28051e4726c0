"""Record batches of one shape as CUDA graphs, and replay them."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import Tensor, nn

from normlens.errors import is_out_of_memory
from normlens.gpu.graphs import HAS_GRAPH_EVENTS, Captured, Inputs, ModelState, described
from normlens.inputs.text import Encoded
from normlens.layers import FeedForward
from normlens.options import SHAPLEY
from normlens.pipeline.collect import Collected
from normlens.pipeline.stack_run import Stack, StackRun
from normlens.trace.locking import process_lock

if TYPE_CHECKING:
    from normlens.pipeline.call import Analyser


#: Batches of one shape before the next one is recorded.
BEFORE = 2
#: Operations of a layer's feed-forward stage, and tokens of a batch, up to which launching a layer
#: may take longer than running it.
OPERATIONS, TOKENS = 4e13, 1 << 14
#: Recordings of one lens; the one that was used longest ago makes room.
RECORDINGS = 8
#: Changes of a model after which it is no longer recorded.
CHANGES = 16
#: Bytes that all recordings of a lens may keep on the device.
KEPT = 8 << 30
#: Shapes whose batches are counted.
COUNTED = 512
#: Failures after which a shape is not recorded: a GPU that others use may refuse it once.
FAILURES = 2

Run = Callable[[dict[str, Tensor]], list[StackRun]]


class Recording:
    """One batch's kernels, with the tensors that they read and write."""

    def __init__(self, run: Run, inputs: Inputs, state: ModelState):
        self.state, self.used = state, threading.Lock()
        self._captured = Captured(run, inputs)
        self.bytes = self._captured.bytes
        self._last: list[weakref.ref[Collected]] = []  # whose results the last replay leaves

    @property
    def pending(self) -> bool:
        """Whether results of the last replay are not taken yet."""
        return any((last := each()) is not None and last.pending for each in self._last)

    def replay(self, inputs: Inputs, into: Sequence[Collected]) -> bool:
        """Run the same on other inputs, with results for each of the recorded runs.

        False if the model is no longer the one that was recorded, which is found out meanwhile.
        """
        for last in self._last:
            if (collected := last()) is not None:
                collected.take()
        runs = self._captured.replay(inputs)
        if not self.state.holds():
            return False
        for collected, run in zip(into, runs, strict=True):
            collected.replayed(run.collected, self)
        self._last = [weakref.ref(collected) for collected in into]
        return True


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

#: One thread of the process records at a time.
_capturing = threading.Lock()


class Recordings:
    """The recordings of one lens."""

    def __init__(self) -> None:
        self._counts: OrderedDict[Hashable, int] = OrderedDict()
        self._recorded: OrderedDict[Hashable, Any] = OrderedDict()
        self._failures: dict[Hashable, int] = {}
        self._changes = 0  # of the model since the first recording
        self._lock = process_lock()

    def __reduce__(self) -> tuple[type[Recordings], tuple[()]]:
        return Recordings, ()  # a copy of a lens begins without any

    @contextmanager
    def acquire(
        self, model: nn.Module, key: Hashable, record: Callable[[ModelState], R]
    ) -> Iterator[R | None]:
        """The recording of batches with this key, for this thread alone, if there is one.

        The third batch is recorded by `record`, which is given the state of the model. Batches that
        follow each other have two recordings in turn, so that a GPU does not wait for what it has
        computed to be taken, nor one thread for another.
        """
        recording = self._find(model, key, record, BEFORE)
        if recording is not None and _is_engaged(recording) and 2 * recording.bytes <= KEPT:
            recording = self._find(model, (key, "next"), record, 0) or recording
        if recording is None:
            yield None
            return
        with recording.used:
            yield recording

    def forget(self) -> bool:
        """Drop every recording, whether there were any: the model has changed, or memory is out."""
        with self._lock:
            if not self._recorded:
                return False
            self._drop()
            return True

    def _drop(self) -> None:
        self._recorded.clear()
        self._counts.clear()
        self._changes += 1

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
                self._drop()
            if not self._is_due(key, before):
                return None
        # To record is to run the model, which another thread may hold while it asks for a recording
        # itself. So no lock is waited for here, and none that others wait for is held.
        if not _capturing.acquire(blocking=False):
            return None
        try:
            return self._recording(model, key, record)
        finally:
            _capturing.release()

    def _is_due(self, key: Hashable, before: int) -> bool:
        if self._failures.get(key, 0) >= FAILURES or self._changes > CHANGES:
            return False
        self._counts[key] = self._counts.pop(key, 0) + 1
        while len(self._counts) > COUNTED:
            self._counts.popitem(last=False)
        return self._counts[key] > before

    def _recording(
        self, model: nn.Module, key: Hashable, record: Callable[[ModelState], R]
    ) -> R | None:
        state = ModelState.of(model)
        if state is None:
            return None
        try:
            recording = record(state)
        except RuntimeError as error:
            # Something waits for the GPU on the way, which a recording cannot.
            with self._lock:
                self._note_failure(key)
                if is_out_of_memory(error):
                    self._recorded.clear()
            return None
        with self._lock:
            if recording.bytes > KEPT:
                self._failures[key] = FAILURES
                return None
            self._recorded[key] = recording
            while len(self._recorded) > RECORDINGS or (
                len(self._recorded) > 1 and sum(r.bytes for r in self._recorded.values()) > KEPT
            ):
                self._recorded.popitem(last=False)
        return recording

    def _note_failure(self, key: Hashable) -> None:
        if len(self._failures) >= COUNTED:
            self._failures.clear()
        self._failures[key] = self._failures.get(key, 0) + 1


def _is_engaged(recording: Recorded) -> bool:
    """Whether a replay would have to wait for another one."""
    return recording.pending or recording.used.locked()


def recording_key(
    call: Analyser, sequences: Sequence[Sequence[Encoded]], inputs: Inputs
) -> Hashable | None:
    """What batches have in common that a recording can stand for; None: this one has none.

    The key holds the products of weights that a prepared lens keeps, so that they stay in memory,
    and others that take their place are other ones.
    """
    lens, request = call.lens, call.request
    if lens.device.type != "cuda" or not HAS_GRAPH_EVENTS or call.progress is not None:
        return None
    lengths = [len(sequence) for batch in sequences for sequence in batch]
    if request.settings.rule == SHAPLEY or sum(lengths) > TOKENS:
        return None
    if sum(n * n for n in lengths) * _largest_block(call.stacks) > OPERATIONS:
        return None
    blocks = lens.adapter.blocks() if call.products is not None else ()
    return (
        tuple(repr(stack.request) for stack in call.stacks),
        tuple(lengths),
        described(inputs),
        tuple(call.products.of(block) for block in blocks) if call.products is not None else (),
    )


def _largest_block(stacks: Sequence[Stack]) -> int:
    """Operations for one pair of tokens in the largest feed-forward block, of its last product."""
    blocks = [layer.feed_forward for stack in stacks for layer in stack.layers]
    sizes = [block.down.weight.numel() for block in blocks if isinstance(block, FeedForward)]
    return 2 * max(sizes, default=0)
