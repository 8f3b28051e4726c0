"""Giving blocks to workers that may join, leave and die, wherever they run; nothing needs torch.

A worker gathers the rows of several blocks before it writes and reports them. What it had gathered
is computed again if it dies. A block that was at work in a worker that died is suspect: it is given
out again, to a worker that holds nothing else, so that the next death has one suspect only. After
so many deaths it is tried sequence by sequence. Nothing is repeated for ever: each death counts
against a block, against a sequence, or against the workers as a whole.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from array import array
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeAlias

from normlens.corpus.engines.guard import Late
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.ledger import Block, FileSet, Unwritten

#: Blocks that a worker holds: one is tokenised and one becomes tables while the model works on the
#: third.
EACH = 3
#: Deaths at one sequence, alone in its worker, that make it the culprit: one may be a coincidence.
CERTAIN = 2
#: Sequences of a block that may be culprits, one after another, before the fault is the machine's.
IN_A_ROW = 3
#: Seconds after which a worker is asked whether a sequence takes too long, at most.
LOOK = 5.0
#: Seconds that workers have to write what they gathered when a run is interrupted.
LAST_WORD = 10.0

Read: TypeAlias = Callable[[int], Block]


# The workers of a run, wherever they are: hired, asked, and lost.


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


class Call(NamedTuple):
    """A method of a `Station` and its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()


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


# What workers are asked, one call after another, until a block is finished.


class Job:
    """A block in one call; `alone`, the worker holds nothing else and writes it at once."""

    def __init__(self, block: Block, alone: bool = False):
        self.block, self.alone = block, alone
        self.call = Call("compute", (block, alone))

    @property
    def indices(self) -> range:
        """The running numbers of the block's sequences."""
        return range(self.block.first, self.block.first + len(self.block.records))

    def answered(self, answer: Any) -> bool:
        """Take the answer to `call`; whether it was the last one."""
        return True


class WorkerDied(Exception):
    """The worker of a job ended without an answer, or was ended because it was `late`."""

    def __init__(self, reason: str, late: bool):
        super().__init__(reason)
        self.late = late


class OneByOne(Job):
    """A block sequence by sequence, to find which of them kills its worker.

    The sequences go through the same stages, in the same order, as those of a whole block whose
    batches hold one each, so that the tables come to the same bits.
    """

    def __init__(self, block: Block, attempts: int):
        super().__init__(block, alone=True)
        self._attempts = attempts
        self._steps = self._calls()
        self.call = next(self._steps)

    def answered(self, answer: Any) -> bool:
        try:
            self.call = self._steps.send(answer)
        except StopIteration:
            return True
        return False

    def died(self, reason: str, late: bool = False) -> None:
        """Begin again with a new worker, without the sequence that is certain to kill it."""
        self.call = self._steps.throw(WorkerDied(reason, late))

    def _calls(self) -> Generator[Call, Any, None]:
        culprits: dict[int, str] = {}
        deaths: Counter[int | None] = Counter()
        while True:
            index: int | None = None  # the sequence at work
            try:
                yield Call("begin", (self.block, dict(culprits)))
                lengths: dict[int, int] = {}
                for index in self.indices:
                    if index not in culprits:
                        length = yield Call("encode", (index,))
                        lengths |= {} if length is None else {index: length}
                for index in sorted(lengths, key=lambda index: (lengths[index], index)):
                    yield Call("analyse", (index,))
                index = None
                yield Call("finish")
                return
            except WorkerDied as error:
                deaths[index] += 1
                if index is None and deaths[None] >= self._attempts:
                    raise RunError(
                        f"a worker died {deaths[None]} times while it made the tables of block "
                        f"{self.block.number} ({error}), which is no single sequence's doing; what "
                        "is done is kept: resume the run with fewer --workers or more memory"
                    ) from None
                if index is not None and deaths[index] >= CERTAIN:
                    fate = str(error) if error.late else f"it kills its worker: {error}"
                    culprits[index] = f"{fate}, each time it was tried alone"


# Giving blocks out, and taking in what comes back.


@dataclass
class _Post:
    """A worker as its pool sees it: the jobs that it holds, by the numbers of their calls."""

    joined: bool = False
    jobs: dict[int, Job] = field(default_factory=dict)
    gathered: array[int] = field(default_factory=lambda: array("q"))  # computed, not reported
    reported: set[int] = field(default_factory=set)  # blocks whose own answer is still to come
    writing: int | None = None  # the call that asks it to write what it has gathered
    pulse: int | None = None  # the call that asks whether a sequence takes too long
    asked: float = 0.0  # when it was asked that
    heard: float = 0.0  # when anything was last heard of it
    late: Late | None = None  # what it answered
    longest: float = 0.0  # seconds that what it is at may take

    @property
    def free(self) -> int:
        """How many blocks it can take beside those that it holds."""
        room = EACH - len(self.jobs)  # most workers are full, which is quickly seen
        return 0 if room and any(job.alone for job in self.jobs.values()) else room

    @property
    def is_idle(self) -> bool:
        return self.joined and not self.jobs and self.writing is None


class Pool:
    """Keeps a crew at work on blocks, and finds those that kill workers.

    With a `timeout`, workers are asked now and then whether a sequence takes too long. One in which
    it does, or that cannot even answer within so many seconds, is ended, and counts as dead.
    """

    #: whether the death of this process is that of its workers
    dies_with_workers = False

    def __init__(self, crew: Crew, attempts: int = 3, timeout: float | None = None):
        self.crew = crew
        self.attempts = attempts
        self.timeout = timeout or 0.0
        self._posts: dict[int, _Post] = {}
        self._again: deque[int] = deque()  # blocks that were lost with what a worker had gathered
        self._waiting: deque[Job] = deque()  # each needs a worker of its own
        self._results: deque[FileSet | Unwritten] = deque()  # that are there and not yet given out
        self._most = sys.maxsize  # workers, where more of them died while they started
        self._failed_starts = 0  # in a row
        self._fruitless = 0  # deaths since something was last finished
        try:
            joined = self._start()
        except BaseException:
            crew.abandon()
            crew.close()
            raise
        self.identity, self.by = joined.identity, joined.by  # of the model, and where it runs

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.crew.abandon()
        self.crew.close()

    def _start(self) -> Joined:
        """Hire the crew; the first worker to join speaks for all."""
        first: Joined | None = None
        while first is None:
            self._hire()
            for event in self.crew.events():
                self._handle(event, Counter())
                first = event if isinstance(event, Joined) else first
        return first

    def compute(
        self, numbers: Iterable[int], read: Read, deaths: Counter[int] | None = None
    ) -> Iterator[FileSet | Unwritten]:
        """Yield results as they come; a block is read only when there is a worker for it.

        `deaths` counts the workers that died with each block.
        """
        remaining, more = iter(numbers), True
        deaths = Counter() if deaths is None else deaths
        while True:
            self._hire()
            if more or self._again:
                more = self._hand_out(remaining, read, deaths)
            self._hand_to_idle(more or bool(self._again))
            while self._results:
                yield self._results.popleft()
            at_work = (post.jobs or post.writing is not None for post in self._posts.values())
            if more or self._again or self._waiting or any(at_work):
                for event in self.crew.events():
                    self._handle(event, deaths)
                if self.timeout:
                    self._look(deaths)
            else:
                return

    def write_early(self) -> None:
        """Have workers write more often at first, where their death is that of this process."""

    def rest(self) -> Iterator[FileSet]:
        """Have workers write what they have gathered, before they are left."""
        until = time.monotonic() + LAST_WORD
        self._waiting.clear()
        for worker, post in self._posts.items():
            if post.gathered and post.writing is None:
                post.writing = self.crew.ask(worker, Call("write"))
        while time.monotonic() < until:
            while self._results:
                if isinstance(result := self._results.popleft(), FileSet):
                    yield result
            if not any(post.writing is not None for post in self._posts.values()):
                return
            for event in self.crew.events():
                if not isinstance(event, Died):
                    self._handle(event, Counter())

    def _handle(self, event: Event, deaths: Counter[int]) -> None:
        self._posts[event.worker].heard = time.monotonic()
        match event:
            case Joined():
                self._posts[event.worker].joined = True
                self._failed_starts = 0
            case Answered():
                self._answer(event)
            case Died():
                self.on_worker_died(event, deaths)

    # Handing out ----------------------------------------------------------------------------------

    def _hire(self) -> None:
        while len(self._posts) < max(1, min(self.crew.wanted, self._most)):
            self._posts[self.crew.hire()] = _Post()

    def _hand_out(self, remaining: Iterator[int], read: Read, deaths: Counter[int]) -> bool:
        """Give blocks to the workers with most room; False if there are no more new ones.

        As many workers as there are suspects get nothing new, until they are idle and take them.
        """
        with_room = sorted(
            (len(post.jobs), worker)
            for worker, post in self._posts.items()
            if post.joined and post.free
        )
        heap = with_room[len(self._waiting) :]
        while heap:
            number = self._again.popleft() if self._again else next(remaining, None)
            if number is None:
                return False
            held, worker = heappop(heap)
            if deaths[number]:
                self._waiting.append(self._suspect(read(number), deaths[number]))
                continue
            self._give(worker, Job(read(number)))
            if self._posts[worker].free:
                heappush(heap, (held + 1, worker))
        return True

    def _hand_to_idle(self, more: bool) -> None:
        """Give suspects to idle workers, which first write what they have; at the end, all do."""
        for worker, post in self._posts.items():
            if not post.is_idle:
                continue
            if post.gathered and (self._waiting or not more):
                post.writing = self.crew.ask(worker, Call("write"))
            elif self._waiting:
                self._give(worker, self._waiting.popleft())

    def _give(self, worker: int, job: Job) -> None:
        self._posts[worker].jobs[self.crew.ask(worker, job.call)] = job

    def _suspect(self, block: Block, deaths: int) -> Job:
        """A suspect: whole once more, or sequence by sequence."""
        return Job(block, alone=True) if deaths < self.attempts else OneByOne(block, self.attempts)

    # Workers that take too long -------------------------------------------------------------------

    def _look(self, deaths: Counter[int]) -> None:
        """End workers that are late or silent, and ask the others."""
        now = time.monotonic()
        for worker, post in list(self._posts.items()):
            if not post.jobs:
                continue
            silence = max(self.timeout, post.longest)
            if post.late is not None:
                died = Died(worker, post.late.reason, post.late.index)
            elif post.pulse is not None and now - max(post.heard, post.asked) > silence:
                died = Died(worker, f"it was ended after {silence:g} s without an answer")
            else:
                if post.pulse is None and now - post.asked > min(LOOK, self.timeout / 4):
                    post.asked, post.pulse = now, self.crew.ask(worker, Call("pulse"))
                continue
            self.crew.dismiss(worker)
            self.on_worker_died(died, deaths)

    # What comes back ------------------------------------------------------------------------------

    def _answer(self, event: Answered) -> None:
        post, answer = self._posts[event.worker], event.answer
        if event.number == post.pulse:
            post.pulse = None
            post.late, post.longest = answer
            return
        if isinstance(answer, FileSet):
            at_work = {job.block.number for job in post.jobs.values()}
            post.reported |= at_work.intersection(answer.blocks)
            written = set(answer.blocks)
            post.gathered = array("q", (each for each in post.gathered if each not in written))
            self._results.append(answer)
        if event.number == post.writing:
            post.writing = None
            self._lose(post)  # nothing, unless the worker has lost something
            return
        job = post.jobs.pop(event.number)
        post.late = None  # it may have been this one; or else the next answer tells again
        if job.call.method in ("compute", "analyse"):
            self._fruitless = 0
        if not job.answered(answer):
            self._give(event.worker, job)
        elif job.block.number in post.reported:
            post.reported.remove(job.block.number)
        elif isinstance(answer, Unwritten):
            post.gathered.append(answer.block)
            self._results.append(answer)

    def _lose(self, post: _Post) -> None:
        """Have what a worker had gathered computed again."""
        for number in sorted(post.gathered):
            self._again.append(number)
            self._results.append(Unwritten(number, lost=True))
        post.gathered = array("q")

    def on_worker_died(self, event: Died, deaths: Counter[int]) -> None:
        post = self._posts.pop(event.worker)
        if not post.joined:
            self._lost_at_start(event.reason)
            return
        self._fruitless += 1
        # Each worker may be at a poisonous block, whose first sequences may all be culprits.
        if self._fruitless > (1 + len(self._posts)) * (self.attempts + CERTAIN * IN_A_ROW):
            raise RunError(
                f"{self._fruitless} workers died one after another and none finished a sequence "
                f"(the last one: {event.reason}); what is done is kept: resume the run where that "
                "is put right, with fewer --workers or a smaller --batch-size if memory is short"
            )
        self._lose(post)
        # They come before other suspects, so that one block is through with before the next.
        for job in reversed(post.jobs.values()):
            if job.block.number in post.reported:
                continue
            deaths[job.block.number] += 1
            late = event.late is not None and event.late in job.indices
            if isinstance(job, OneByOne):
                job.died(event.reason, late)
                self._waiting.appendleft(job)
            else:
                # A sequence that took too long will do so again: no need to try the whole block.
                count = self.attempts if late else deaths[job.block.number]
                self._waiting.appendleft(self._suspect(job.block, count))

    def _lost_at_start(self, reason: str) -> None:
        self._failed_starts += 1
        if self._failed_starts < self.attempts:
            return
        left = len(self._posts)  # at work, or still starting
        if not left:
            raise RunError(
                f"workers die while they load the model ({reason}); if memory is short, take fewer "
                "--workers; what is done is kept"
            )
        if left < self._most:
            self._most = left
            print(
                f"no more workers can be started ({reason}); the run goes on with {left}",
                file=sys.stderr,
                flush=True,
            )
