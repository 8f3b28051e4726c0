"""Giving blocks to workers that may join, leave and die, wherever they run; nothing needs torch.

A worker gathers the rows of several blocks before it writes and reports them. What it had gathered
is computed again if it dies. A block that was at work in a worker that died is suspect: it is given
out again, to a worker that holds nothing else, so that the next death has one suspect only. After
so many deaths it is tried sequence by sequence. Nothing is repeated for ever: each death counts
against a block, against a sequence, or against the workers as a whole.
"""

from __future__ import annotations

import itertools
import sys
import time
from abc import ABC, abstractmethod
from array import array
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
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


class Call(NamedTuple):
    """A method of a `Worker` and its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()


class Answered(NamedTuple):
    """A worker has answered the call with this number."""

    worker: int
    number: int
    answer: Any


class Died(NamedTuple):
    """A worker has ended; what it was asked is not answered any more."""

    worker: int
    reason: str
    late: int | None = None  # the sequence that took too long, where the worker was ended for it


Event: TypeAlias = Answered | Died


class Crew(ABC):
    """Workers and calls by the numbers that a pool gives them, each number once."""

    @property
    @abstractmethod
    def wanted(self) -> int:
        """How many workers there should be at the moment."""

    @abstractmethod
    def hire(self, worker: int) -> None:
        """Start one more worker; it may be asked at once, and answers when it has its model."""

    @abstractmethod
    def ask(self, worker: int, number: int, call: Call) -> None:
        """Send a call to a worker; one that is dead shows by an event."""

    @abstractmethod
    def events(self) -> list[Event]:
        """Wait for events and give those that are there; none if for a while there were none.

        What a worker raised is raised here.
        """

    @abstractmethod
    def dismiss(self, worker: int) -> None:
        """End a worker at once, whatever it is doing; no event tells of it."""

    @abstractmethod
    def close(self, at_once: bool = False) -> None:
        """Let all workers go, or end them `at_once`."""


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

    def answered(self) -> bool:
        """Go on to the next `call`; whether there is none."""
        return True


class WorkerDied(Exception):
    """The worker of a job ended without an answer, or was ended because it was `late`."""

    def __init__(self, reason: str, late: bool):
        super().__init__(reason)
        self.late = late


class OneByOne(Job):
    """Each sequence of a block alone, to find those that kill their worker; then the others.

    Those go through the worker together, in batches of one sequence, so that the tables come to the
    same bits.
    """

    def __init__(self, block: Block, attempts: int):
        super().__init__(block, alone=True)
        self._attempts = attempts
        self._steps = self._calls()
        self.call = next(self._steps)

    def answered(self) -> bool:
        following = next(self._steps, None)
        self.call = following or self.call
        return following is None

    def died(self, reason: str, late: bool = False) -> None:
        """Try again with a new worker, without a sequence that is certain to kill it."""
        self.call = self._steps.throw(WorkerDied(reason, late))

    def _calls(self) -> Generator[Call, None, None]:
        culprits: dict[int, str] = {}
        for index, record in zip(self.indices, self.block.records, strict=True):
            one = replace(self.block, first=index, records=(record,))
            for death in range(1, CERTAIN + 1):
                try:
                    yield Call("probe", (one,))
                    break
                except WorkerDied as error:
                    if death == CERTAIN:
                        fate = str(error) if error.late else f"it kills its worker: {error}"
                        culprits[index] = f"{fate}, each time it was tried alone"
        deaths = 0
        while True:
            try:
                yield Call("compute", (self.block, True, culprits))
                return
            except WorkerDied as error:
                deaths += 1
                if deaths >= self._attempts:
                    raise RunError(
                        f"a worker died {deaths} times while it made the tables of block "
                        f"{self.block.number} ({error}), which is no single sequence's doing; what "
                        "is done is kept: resume the run with fewer --workers or more memory"
                    ) from None


# Giving blocks out, and taking in what comes back.


@dataclass
class _Post:
    """A worker as its pool sees it: the jobs that it holds, by the numbers of their calls."""

    joining: int | None  # the call that asks it what model it has loaded
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
    def has_room(self) -> bool:
        """Whether it can take a block beside those that it holds."""
        return len(self.jobs) < EACH and not any(job.alone for job in self.jobs.values())

    @property
    def is_idle(self) -> bool:
        return self.joining is None and not self.jobs and self.writing is None


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
        self._numbers = itertools.count()
        self._posts: dict[int, _Post] = {}
        self._again: deque[int] = deque()  # blocks that were lost with what a worker had gathered
        self._waiting: deque[Job] = deque()  # each needs a worker of its own
        self._results: deque[FileSet | Unwritten] = deque()  # that are there and not yet given out
        self._most = sys.maxsize  # workers, where more of them died while they started
        self._failed_starts = 0  # in a row
        self._fruitless = 0  # deaths since something was last finished
        #: of the model, and where it runs, as the first worker to join says it
        self.identity: dict[str, Any] = {}
        self.by: dict[str, Any] = {}
        try:
            while not self.by:
                self._hire()
                self._handle(self.crew.events(), Counter())
        except BaseException:
            crew.close(at_once=True)
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.crew.close(at_once=kind is not None)

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
            if not (more or self._again or self._waiting or any(at_work)):
                return
            self._handle(self.crew.events(), deaths)
            if self.timeout:
                self._look(deaths)

    def write_early(self) -> None:
        """Have workers write more often at first, where their death is that of this process."""

    def rest(self) -> Iterator[FileSet]:
        """Have workers write what they have gathered, before they are left."""
        until = time.monotonic() + LAST_WORD
        self._waiting.clear()
        for worker, post in self._posts.items():
            if post.gathered and post.writing is None:
                post.writing = self._ask(worker, Call("write"))
        while time.monotonic() < until:
            while self._results:
                if isinstance(result := self._results.popleft(), FileSet):
                    yield result
            if all(post.writing is None for post in self._posts.values()):
                return
            answers = [event for event in self.crew.events() if isinstance(event, Answered)]
            self._handle(answers, Counter())

    def _ask(self, worker: int, call: Call) -> int:
        number = next(self._numbers)
        self.crew.ask(worker, number, call)
        return number

    # Handing out ----------------------------------------------------------------------------------

    def _hire(self) -> None:
        while len(self._posts) < max(1, min(self.crew.wanted, self._most)):
            worker = next(self._numbers)
            self.crew.hire(worker)
            self._posts[worker] = _Post(self._ask(worker, Call("describe")))

    def _hand_out(self, remaining: Iterator[int], read: Read, deaths: Counter[int]) -> bool:
        """Give blocks to the workers with most room; False if there are no more new ones.

        As many workers as there are suspects get nothing new, until they are idle and take them.
        """
        posts = [(worker, post) for worker, post in self._posts.items() if post.joining is None]
        with_room = sorted(
            (each for each in posts if each[1].has_room), key=lambda each: len(each[1].jobs)
        )[len(self._waiting) :]
        for held in range(EACH):
            for worker, post in with_room:
                if len(post.jobs) != held:
                    continue
                number = self._again.popleft() if self._again else next(remaining, None)
                if number is None:
                    return False
                if deaths[number]:
                    self._waiting.append(self._suspect(read(number), deaths[number]))
                else:
                    self._give(worker, Job(read(number)))
        return True

    def _hand_to_idle(self, more: bool) -> None:
        """Give suspects to idle workers, which first write what they have; at the end, all do."""
        for worker, post in self._posts.items():
            if not post.is_idle:
                continue
            if post.gathered and (self._waiting or not more):
                post.writing = self._ask(worker, Call("write"))
            elif self._waiting:
                self._give(worker, self._waiting.popleft())

    def _give(self, worker: int, job: Job) -> None:
        self._posts[worker].jobs[self._ask(worker, job.call)] = job

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
                    post.asked, post.pulse = now, self._ask(worker, Call("pulse"))
                continue
            self.crew.dismiss(worker)
            self.on_worker_died(died, deaths)

    # What comes back ------------------------------------------------------------------------------

    def _handle(self, events: Iterable[Event], deaths: Counter[int]) -> None:
        for event in events:
            self._posts[event.worker].heard = time.monotonic()
            if isinstance(event, Died):
                self.on_worker_died(event, deaths)
            else:
                self._answer(*event)

    def _answer(self, worker: int, number: int, answer: Any) -> None:
        post = self._posts[worker]
        if number == post.joining:
            post.joining, self._failed_starts = None, 0
            if not self.by:
                self.identity, self.by = answer
            return
        if number == post.pulse:
            post.pulse = None
            post.late, post.longest = answer
            return
        if isinstance(answer, FileSet):
            at_work = {job.block.number for job in post.jobs.values()}
            post.reported |= at_work.intersection(answer.blocks)
            written = set(answer.blocks)
            post.gathered = array("q", (each for each in post.gathered if each not in written))
            self._results.append(answer)
        if number == post.writing:
            post.writing = None
            self._lose(post)  # nothing, unless the worker has lost something
            return
        job = post.jobs.pop(number)
        post.late = None  # it may have been this one; or else the next answer tells again
        self._fruitless = 0
        if not job.answered():
            self._give(worker, job)
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
        if post.joining is not None:
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
            else:
                # A sequence that took too long will do so again: no need to try the whole block.
                count = self.attempts if late else deaths[job.block.number]
                job = self._suspect(job.block, count)
            self._waiting.appendleft(job)

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
