"""What workers are asked, one call after another, until a shard is finished."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.shards import Finished, Shard

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
