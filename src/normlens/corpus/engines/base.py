"""The interface of an engine and of its workers, wherever they run; nothing here needs torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.shards import Finished, Shard

# How often each shard was in the hands of a worker that died.


class Attempts:
    """Deaths by the numbers of shards, over the whole life of a run.

    `keep` is called with a shard, its count and the reason of the last death. `resumed` says that a
    process worked on this run before, and was stopped.
    """

    def __init__(
        self,
        before: Mapping[int, int] | None = None,
        keep: Callable[[int, int, str], None] | None = None,
        resumed: bool = False,
    ):
        self.resumed = resumed
        self._counts = dict(before or {})
        self._keep = keep

    def __getitem__(self, shard: int) -> int:
        return self._counts.get(shard, 0)

    def add(self, shard: int, reason: str) -> int:
        """Count one more death, and return how many there are."""
        self._counts[shard] = count = self[shard] + 1
        if self._keep is not None:
            self._keep(shard, count, reason)
        return count


# The workers of an engine, wherever they run: hired, asked, and lost.


@dataclass(frozen=True)
class Joined:
    """A worker has loaded its model and can be asked."""

    worker: int
    identity: dict[str, Any]
    by: dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """A worker has answered the call with this number."""

    worker: int
    number: int
    answer: Any


@dataclass(frozen=True)
class Died:
    """A worker has ended; what it was asked is not answered any more."""

    worker: int
    reason: str
    late: int | None = None  # the sequence that took too long, where the worker was ended for it


Event: TypeAlias = Joined | Answered | Died


class Crew(ABC):
    """Workers by their numbers, which are never used again."""

    @property
    @abstractmethod
    def wanted(self) -> int:
        """How many workers there should be at the moment."""

    @abstractmethod
    def hire(self) -> int:
        """Start one more worker; it can be asked once it has joined."""

    @abstractmethod
    def ask(self, worker: int, call: Call) -> int:
        """Send a call to a worker and give its number; one that is dead shows by an event."""

    @abstractmethod
    def events(self) -> list[Event]:
        """Wait for events and give those that are there; none if for a while there were none.

        What a worker raised is raised here.
        """

    @abstractmethod
    def dismiss(self, worker: int) -> None:
        """End a worker at once, whatever it is doing; no event tells of it."""

    def abandon(self) -> None:
        """Drop the work that is going on."""
        return

    @abstractmethod
    def close(self) -> None:
        """Let all workers go."""


# What workers are asked, one call after another, until a shard is finished.


#: Deaths at one sequence, alone in its worker, that make it the culprit: one may be a coincidence.
CERTAIN = 2


@dataclass(frozen=True)
class Call:
    """A method of a `Station` and its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()


class Job(ABC):
    """The calls that finish a shard; `call` is the next one."""

    shard: Shard
    call: Call
    #: whether the worker may hold nothing else meanwhile
    alone: bool

    @property
    def indices(self) -> range:
        """The running numbers of the shard's sequences."""
        return range(self.shard.first, self.shard.first + len(self.shard.records))

    @abstractmethod
    def answered(self, answer: Any) -> Finished | None:
        """Take the answer to `call`; the shard's results if it was the last one."""


class Whole(Job):
    """A shard in one call."""

    def __init__(self, shard: Shard, alone: bool = False):
        self.shard, self.alone = shard, alone
        self.call = Call("compute", (shard,))

    def answered(self, answer: Any) -> Finished:
        return answer


def again(shard: Shard) -> Shard:
    """The shard as it is handed out once more, to another worker, which writes other files."""
    return replace(shard, attempt=shard.attempt + 1)


class WorkerDied(Exception):
    """The worker of a job ended without an answer, or was ended because it was `late`."""

    def __init__(self, reason: str, late: bool):
        super().__init__(reason)
        self.late = late


class OneByOne(Job):
    """A shard sequence by sequence, to find which of them kills its worker.

    The sequences go through the same stages, in the same order, as those of a whole shard whose
    batches hold one each, so that the tables come to the same bits.
    """

    alone = True

    def __init__(self, shard: Shard, attempts: int):
        self.shard = shard
        self._attempts = attempts
        self._steps = self._calls()
        self.call = next(self._steps)

    def answered(self, answer: Any) -> Finished | None:
        try:
            self.call = self._steps.send(answer)
        except StopIteration as end:
            return end.value
        return None

    def died(self, reason: str, late: bool = False) -> None:
        """Begin again with a new worker, without the sequence that is certain to kill it."""
        self.shard = again(self.shard)
        self.call = self._steps.throw(WorkerDied(reason, late))

    def _calls(self) -> Generator[Call, Any, Finished]:
        culprits: dict[int, str] = {}
        deaths: Counter[int | None] = Counter()
        while True:
            index: int | None = None  # the sequence at work
            try:
                yield Call("begin", (self.shard, dict(culprits)))
                lengths: dict[int, int] = {}
                for index in self.indices:
                    if index not in culprits:
                        length = yield Call("encode", (index,))
                        lengths |= {} if length is None else {index: length}
                for index in sorted(lengths, key=lambda index: (lengths[index], index)):
                    yield Call("analyse", (index,))
                index = None
                return (yield Call("finish"))
            except WorkerDied as error:
                deaths[index] += 1
                if index is None and deaths[None] >= self._attempts:
                    raise RunError(
                        f"a worker died {deaths[None]} times while it made the tables of shard "
                        f"{self.shard.number} ({error}), which is no single sequence's doing; what "
                        "is done is kept: resume the run with fewer --workers or more memory"
                    ) from None
                if index is not None and deaths[index] >= CERTAIN:
                    fate = str(error) if error.late else f"it kills its worker: {error}"
                    culprits[index] = f"{fate}, each time it was tried alone"


# The interface of an engine.


class Engine(ABC):
    """Turns shards into their results, in whatever order they come."""

    identity: dict[str, Any]  # of the model that the workers hold
    by: dict[str, Any]  # where it runs

    @abstractmethod
    def compute(
        self, shards: Iterable[Shard], attempts: Attempts | None = None
    ) -> Iterator[Finished]:
        """Compute shards, taking each only when there is room for it, and yield their results.

        `attempts` knows which shards were in the hands of workers that died, and is told.
        """

    def has_result(self) -> bool:
        """Whether `compute` would yield the next result at once; such are committed together."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Let go of workers and models."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()
        self.close()

    def abandon(self) -> None:
        """Drop the work that is going on; its results are not wanted any more."""
        return  # within one process nothing goes on that could not be waited for
