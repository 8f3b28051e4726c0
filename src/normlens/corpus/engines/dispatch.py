"""Giving shards to workers that may join, leave and die.

A shard that was in the hands of a worker that died is suspect: it is given out again, to a worker
that holds nothing else, so that the next death has one suspect only. After so many deaths it is
tried sequence by sequence. Nothing is repeated for ever: each death counts against a shard, against
a sequence, or against the workers as a whole.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from normlens.corpus.engines.base import (
    CERTAIN,
    Answered,
    Attempts,
    Call,
    Crew,
    Died,
    Event,
    Job,
    Joined,
    OneByOne,
    Whole,
    again,
)
from normlens.corpus.engines.guard import Late
from normlens.corpus.engines.worker import EACH
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.shards import Finished, Shard

#: Sequences of a shard that may be culprits, one after another, before the fault is the machine's.
IN_A_ROW = 3
#: Seconds after which a worker is asked whether a sequence takes too long, at most.
LOOK = 5.0


@dataclass
class _Post:
    """A worker as the dispatcher sees it: the jobs that it holds, by the numbers of their calls."""

    joined: bool = False
    jobs: dict[int, Job] = field(default_factory=dict)
    pulse: int | None = None  # the call that asks whether a sequence takes too long
    asked: float = 0.0  # when it was asked that
    heard: float = 0.0  # when anything was last heard of it
    late: Late | None = None  # what it answered
    longest: float = 0.0  # seconds that what it is at may take

    @property
    def free(self) -> int:
        """How many shards it can take beside those that it holds."""
        room = EACH - len(self.jobs)  # most workers are full, which is quickly seen
        return 0 if room and any(job.alone for job in self.jobs.values()) else room


class Dispatcher:
    """Keeps a crew at work on shards, and finds those that kill workers.

    With a `timeout`, workers are asked now and then whether a sequence takes too long. One in which
    it does, or that cannot even answer within so many seconds, is ended, and counts as dead.
    """

    def __init__(self, crew: Crew, attempts: int, timeout: float | None = None):
        self.crew = crew
        self.attempts = attempts
        self.timeout = timeout or 0.0
        self._posts: dict[int, _Post] = {}
        self._waiting: deque[Job] = deque()  # each needs a worker of its own
        self.results: deque[Finished] = deque()  # that are there and not yet given out
        self._most = sys.maxsize  # workers, where more of them died while they started
        self._failed_starts = 0  # in a row
        self._fruitless = 0  # deaths since something was last finished

    def start(self) -> Joined:
        """Hire the crew; the first worker to join speaks for all."""
        first: Joined | None = None
        while first is None:
            self._hire()
            for event in self.crew.events():
                self._handle(event, Attempts())
                first = event if isinstance(event, Joined) else first
        return first

    def compute(self, shards: Iterable[Shard], attempts: Attempts) -> Iterator[Finished]:
        """Yield results as they come; a shard is taken only when there is a worker for it."""
        remaining = iter(shards)
        more = True
        while True:
            self._hire()
            more = more and self._hand_out(remaining, attempts)
            self._hand_to_idle()
            while self.results:
                yield self.results.popleft()
            if more or self._waiting or any(post.jobs for post in self._posts.values()):
                for event in self.crew.events():
                    self._handle(event, attempts)
                if self.timeout:
                    self._look(attempts)
            else:
                return

    def _handle(self, event: Event, attempts: Attempts) -> None:
        self._posts[event.worker].heard = time.monotonic()
        match event:
            case Joined():
                self._posts[event.worker].joined = True
                self._failed_starts = 0
            case Answered():
                self._answer(event)
            case Died():
                self.on_worker_died(event, attempts)

    # Handing out ----------------------------------------------------------------------------------

    def _hire(self) -> None:
        while len(self._posts) < max(1, min(self.crew.wanted, self._most)):
            self._posts[self.crew.hire()] = _Post()

    def _hand_out(self, remaining: Iterator[Shard], attempts: Attempts) -> bool:
        """Give new shards to the workers with most room; False if there are no more.

        As many workers as there are suspects get nothing new, until they are idle and take them.
        """
        with_room = sorted(
            (len(post.jobs), worker)
            for worker, post in self._posts.items()
            if post.joined and post.free
        )
        heap = with_room[len(self._waiting) :]
        while heap:
            shard = next(remaining, None)
            if shard is None:
                return False
            held, worker = heappop(heap)
            deaths = attempts[shard.number]
            if deaths:
                self._waiting.append(self._suspect(shard, deaths))
                continue
            self._give(worker, Whole(shard))
            if self._posts[worker].free:
                heappush(heap, (held + 1, worker))
        return True

    def _hand_to_idle(self) -> None:
        for worker, post in self._posts.items():
            if self._waiting and post.joined and not post.jobs:
                self._give(worker, self._waiting.popleft())

    def _give(self, worker: int, job: Job) -> None:
        self._posts[worker].jobs[self.crew.ask(worker, job.call)] = job

    def _suspect(self, shard: Shard, deaths: int) -> Job:
        """A suspect: whole once more, or sequence by sequence."""
        if deaths < self.attempts:
            return Whole(shard, alone=True)
        return OneByOne(shard, self.attempts)

    # Workers that take too long -------------------------------------------------------------------

    def _look(self, attempts: Attempts) -> None:
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
            self.on_worker_died(died, attempts)

    # What comes back ------------------------------------------------------------------------------

    def _answer(self, event: Answered) -> None:
        post = self._posts[event.worker]
        if event.number == post.pulse:
            post.pulse = None
            post.late, post.longest = event.answer
            return
        job = post.jobs.pop(event.number)
        post.late = None  # it may have been this one; or else the next answer tells again
        if job.call.method in ("compute", "analyse"):
            self._fruitless = 0
        finished = job.answered(event.answer)
        if finished is None:
            self._give(event.worker, job)
        else:
            self.results.append(finished)

    def on_worker_died(self, event: Died, attempts: Attempts) -> None:
        post = self._posts.pop(event.worker)
        if not post.joined:
            self._lost_at_start(event.reason)
            return
        self._fruitless += 1
        # Each worker may be at a poisonous shard, whose first sequences may all be culprits.
        if self._fruitless > (1 + len(self._posts)) * (self.attempts + CERTAIN * IN_A_ROW):
            raise RunError(
                f"{self._fruitless} workers died one after another and none finished a sequence "
                f"(the last one: {event.reason}); what is done is kept: resume the run where that "
                "is put right, with fewer --workers or a smaller --batch-size if memory is short"
            )
        # They come before other suspects, so that one shard is through with before the next.
        for job in reversed(post.jobs.values()):
            count = attempts.add(job.shard.number, event.reason)
            late = event.late is not None and event.late in job.indices
            if isinstance(job, OneByOne):
                job.died(event.reason, late)
                self._waiting.appendleft(job)
            else:
                # A sequence that took too long will do so again: no need to try the whole shard.
                deaths = self.attempts if late else count
                self._waiting.appendleft(self._suspect(again(job.shard), deaths))

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
            _say(f"no more workers can be started ({reason}); the run goes on with {left}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def opened(
    crew: Crew, attempts: int, timeout: float | None = None
) -> tuple[Dispatcher, dict[str, Any], dict[str, Any]]:
    """A dispatcher whose crew is at work, the identity of its model, and where it runs."""
    dispatcher = Dispatcher(crew, attempts, timeout)
    try:
        first = dispatcher.start()
    except BaseException:
        crew.abandon()
        crew.close()
        raise
    return dispatcher, first.identity, first.by
