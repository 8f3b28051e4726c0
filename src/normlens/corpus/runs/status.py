"""How far a run is, from its records and from what its driver says while it works."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, TextIO

from normlens.corpus.runs.folder import Folder, LocalFolder
from normlens.corpus.runs.ledger import (
    ACTIVITY,
    FileSet,
    State,
    holder,
    read_state,
    sealed,
    unsealed,
)
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.progress import clock
from normlens.errors import InputError, NormLensError, OutputError, counted, system_reason

# What a run's driver is doing: blocks in flight, workers, and how fast it goes at present.
#
# The driver writes it to a small file in the run's folder every now and then. It is no part of
# the run: the records tell what is done, and the lock who works on it. The driver removes the file
# at its end; one that is killed leaves it.


#: Seconds between two writes, on a disk and in an object store.
EVERY_LOCAL, EVERY_REMOTE = 5.0, 60.0
#: Writes that may be missing before the activity counts as out of date.
_MISSING = 3
#: Blocks and workers of which more is told than their number.
LISTED = 500


@dataclass(frozen=True)
class WorkerActivity:
    """What one worker has done since the driver started."""

    name: str  # host:pid
    device: str
    blocks: int
    sequences: int
    failures: int
    rate: float  # sequences per second of its working time
    last: float  # when its last blocks came, in seconds since 1970


@dataclass(frozen=True)
class Activity:
    """What a driver is doing, at one moment."""

    pid: int
    host: str
    epoch: int
    started: float  # seconds since 1970
    written: float
    every: float  # seconds until the next one is due
    sequences: int  # done since it started
    failures: int
    retried: int  # workers that died with the blocks that are done since
    rate: float  # sequences per second, of late
    in_flight: int  # blocks that were handed out and are not recorded yet
    oldest: dict[str, float]  # the first of these, by number: since when
    workers: tuple[WorkerActivity, ...]

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.time() - self.written)

    @property
    def fresh(self) -> bool:
        """Whether it was written when the last one was due, or soon after."""
        return self.age <= _MISSING * self.every + EVERY_LOCAL

    @property
    def by(self) -> str:
        return f"pid {self.pid} on {self.host}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "age": self.age, "fresh": self.fresh}

    def write(self, folder: Folder) -> None:
        told = asdict(self)
        told["oldest"] = dict(list(self.oldest.items())[:LISTED])
        told["workers"] = told["workers"][:LISTED]
        folder.write_note(ACTIVITY, sealed(told))


def read_activity(folder: Folder) -> Activity | None:
    """Read what the driver last wrote; None if that is nothing, or not to be read."""
    try:
        told = unsealed(folder.read(ACTIVITY) or b"")
        workers = tuple(WorkerActivity(**worker) for worker in told.pop("workers"))
        activity = Activity(**told, workers=workers)
        numbers = (
            *(getattr(activity, name) for name in _NUMBERS),
            *activity.oldest.values(),
            *(getattr(worker, name) for worker in workers for name in _WORKER_NUMBERS),
        )
        texts = (activity.host, *(text for w in workers for text in (w.name, w.device)))
        sound = (
            all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
            and all(type(text) is str for text in texts)
            and all(number.isdecimal() for number in activity.oldest)
        )
        return activity if sound else None
    except (InputError, ValueError, TypeError, KeyError, AttributeError):
        return None


_NUMBERS = (
    *("pid", "epoch", "started", "written", "every"),
    *("sequences", "failures", "retried", "rate", "in_flight"),
)
_WORKER_NUMBERS = ("blocks", "sequences", "failures", "rate", "last")


# The driver's own account of a run while it goes on: a file in the run, and lines of JSON.


#: Seconds between two lines of JSON.
ACCOUNT_EVERY = 60.0
#: Seconds that the present rate is taken over.
LATELY = 120.0


class Watching:
    """Notes what goes out to workers and comes back, and tells it from a thread of its own.

    Telling must not disturb the run: a file that cannot be written is passed over, and tried again
    when the next one is due.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        state: State,
        epoch: int,
        heartbeat: str | None = None,
    ):
        self._folder, self._manifest, self._epoch = folder, manifest, epoch
        self._before = (state.sequences + state.failures, state.failures, state.blocks_done)
        self._heartbeat = heartbeat
        self._lines: TextIO | None = None
        self._every = EVERY_LOCAL if isinstance(folder, LocalFolder) else EVERY_REMOTE
        self._lock = threading.Lock()
        self._started = time.time()
        self._in_flight: dict[int, float] = {}
        self._workers: dict[str, WorkerActivity] = {}
        self._seconds: dict[str, float] = {}  # worker → its working time
        self._recent: deque[tuple[float, int]] = deque([(self._started, 0)])  # time, sequences
        self._sequences = self._failures = self._retried = self._blocks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="normlens-activity", daemon=True)

    def __enter__(self) -> Watching:
        if self._heartbeat is not None:
            self._lines = _opened(self._heartbeat)
        self._line("running")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._line("complete" if kind is None else "stopped")
        if self._lines is not None and self._lines is not sys.stdout:
            with suppress(OSError):
                self._lines.close()
        with suppress(NormLensError):
            self._folder.remove(ACTIVITY)

    # What happens -------------------------------------------------------------------------------

    def handed_out(self, number: int) -> None:
        """Note a block that goes out to a worker."""
        with self._lock:
            self._in_flight.setdefault(number, time.time())

    def computed(self, sequences: int) -> None:
        """Note sequences that are done, although their files may not be written yet."""
        now = time.time()
        with self._lock:
            self._recent.append((now, self._recent[-1][1] + sequences))
            while len(self._recent) > 2 and self._recent[1][0] < now - LATELY:
                self._recent.popleft()

    def finished(self, written: FileSet) -> None:
        """Note blocks that are recorded."""
        now, count = time.time(), written.sequences + written.failures
        name = f"{written.by.get('host', '?')}:{written.by.get('pid', '?')}"
        with self._lock:
            for number in written.blocks:
                self._in_flight.pop(number, None)
            self._sequences += count
            self._failures += written.failures
            self._retried += sum(written.deaths.values())
            self._blocks += len(written.blocks)
            seconds = self._seconds.get(name, 0.0) + max(0.0, written.finished - written.started)
            self._seconds[name] = seconds
            before = self._workers.pop(name, None)  # the last to finish stands last
            sequences = count + (before.sequences if before else 0)
            self._workers[name] = WorkerActivity(
                name=name,
                device=str(written.by.get("device", "?")),
                blocks=len(written.blocks) + (before.blocks if before else 0),
                sequences=sequences,
                failures=written.failures + (before.failures if before else 0),
                rate=sequences / seconds if seconds else 0.0,
                last=now,
            )

    def activity(self) -> Activity:
        """All of it at this moment."""
        now = time.time()
        with self._lock:
            (since, before), (_, count) = self._recent[0], self._recent[-1]
            return Activity(
                pid=os.getpid(),
                host=socket.gethostname(),
                epoch=self._epoch,
                started=self._started,
                written=now,
                every=self._every,
                sequences=self._sequences,
                failures=self._failures,
                retried=self._retried,
                rate=(count - before) / max(now - since, 1e-3),
                in_flight=len(self._in_flight),
                oldest={str(number): begun for number, begun in self._in_flight.items()},
                workers=tuple(reversed(self._workers.values())),
            )

    # What is told -------------------------------------------------------------------------------

    def _tell(self) -> None:
        line_due = time.monotonic() + ACCOUNT_EVERY
        while True:
            with suppress(NormLensError):
                self.activity().write(self._folder)
            if self._lines is not None and time.monotonic() >= line_due:
                line_due += ACCOUNT_EVERY
                self._line("running")
            if self._ended.wait(min(self._every, ACCOUNT_EVERY)):
                return

    def _line(self, state: str) -> None:
        if self._lines is not None:
            with suppress(OSError, ValueError):
                print(json.dumps(self.heartbeat(state)), file=self._lines, flush=True)

    def heartbeat(self, state: str) -> dict[str, Any]:
        """One line: how far the run is, for programs that collect such lines."""
        activity = self.activity()
        done, failures, blocks = self._before
        left = self._manifest.sequences - done - activity.sequences
        return {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "run": self._folder.everywhere,
            "state": state,
            "sequences": self._manifest.sequences,
            "done": done + activity.sequences,
            "failures": failures + activity.failures,
            "blocks": self._manifest.blocks,
            "blocks_done": blocks + self._blocks,
            "in_flight": activity.in_flight,
            "retried": activity.retried,
            "rate": round(activity.rate, 3),
            "seconds_left": round(left / activity.rate, 1) if activity.rate else None,
            "epoch": self._epoch,
            "workers": {
                worker.name: {"blocks": worker.blocks, "rate": round(worker.rate, 3)}
                for worker in activity.workers
            },
        }


def check_heartbeat(place: str | None) -> None:
    """Refuse a file that lines cannot be appended to, before anything is computed."""
    if place not in (None, "-"):
        _opened(str(place)).close()


def _opened(place: str) -> TextIO:
    if place == "-":
        return sys.stdout
    try:
        return open(place, "a", encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot write the heartbeat to {place!r}: {system_reason(error)}"
        ) from error


# How far a run is, from the records of its blocks.


#: The stages that a sequence goes through, in their order.
STAGES = ("reading", "tokenising", "maps", "measures", "tables", "writing")
#: Blocks of which attempts are shown.
SHOWN = 5


@dataclass(frozen=True)
class Status:
    """What is done and left, how fast it went, and where the time went."""

    model: str
    data: str
    sequences: int
    done: int  # analysed or failed
    failures: int
    tokens: int
    blocks: int
    blocks_done: int
    seconds: float  # during which at least one worker was busy
    stages: dict[str, float]  # seconds, summed over workers
    running: str | None  # who works on it now
    attempts: dict[int, int] = field(default_factory=dict)  # block → tries that failed

    @property
    def left(self) -> int:
        return self.sequences - self.done

    @property
    def complete(self) -> bool:
        return self.blocks_done == self.blocks

    @property
    def rate(self) -> float:
        """Sequences per second."""
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        return self.left / self.rate if self.rate else None

    def as_json(self) -> dict[str, Any]:
        derived = ("left", "complete", "rate", "seconds_left")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def __str__(self) -> str:
        lines = [
            f"run        {self.model} on {self.data}",
            f"state      {self._state()}",
            f"done       {self.done} of {self.sequences} sequences "
            f"({self.blocks_done} of {self.blocks} blocks)",
            f"left       {self.left} sequences{self._time_left()}",
            f"rate       {self.rate:.2f} sequences/s, {self._tokens_rate():.0f} tokens/s",
            f"failures   {self.failures}{self._share()}",
        ]
        if self.attempts:
            lines.append(f"attempts   {self._tried()}")
        total = sum(self.stages.values())
        shares = [
            f"{stage} {seconds / total:.0%}" for stage, seconds in self.stages.items() if total
        ]
        return "\n".join([*lines, f"time       {', '.join(shares) or 'none yet'}"])

    def _state(self) -> str:
        if self.running:
            return f"running ({self.running})"
        return "complete" if self.complete else "stopped; go on with normlens run --resume"

    def _tried(self) -> str:
        """The blocks that were in flight in workers that died, most deaths first."""
        most = sorted(self.attempts.items(), key=lambda each: (-each[1], each[0]))
        named = [f"block {number}: {count} failed" for number, count in most[:SHOWN]]
        more = len(most) - len(named)
        return ", ".join(named) + (f", and {more} more blocks" if more else "")

    def _share(self) -> str:
        if not self.failures:
            return ""
        return " (every sequence)" if self.failures == self.done else f" of {self.done}"

    def _time_left(self) -> str:
        if not self.left or self.seconds_left is None:
            return ""
        return f", about {clock(self.seconds_left)} at that rate"

    def _tokens_rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def status_of(folder: Folder, manifest: Manifest) -> Status:
    """Read the status of the run in a folder; its tables are not read."""
    state = read_state(folder, manifest, salvage=True)
    return Status(
        model=str(manifest.model["name"]),
        data=str(manifest.data["name"]),
        sequences=manifest.sequences,
        done=state.sequences + state.failures,
        failures=state.failures,
        tokens=state.tokens,
        blocks=manifest.blocks,
        blocks_done=state.blocks_done,
        seconds=_covered((each.started, each.finished) for each in state.records.values()),
        stages=dict.fromkeys(STAGES, 0.0) | state.seconds,
        running=holder(folder),
        attempts={number: count for number, count in sorted(state.deaths.items()) if count},
    )


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Add up the time that spans cover together, without overlaps and breaks."""
    total, until = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return total


# How far a run is and what its driver is doing, put together for whoever watches it.


NONE_YET = "none has finished a block yet"


@dataclass(frozen=True)
class Watched:
    """How far a run is, and what its driver is doing."""

    status: Status
    activity: Activity | None  # of the driver that works on it now; None if it has told nothing
    note: str = ""  # why there is no activity, or what to think of it

    @property
    def running(self) -> str | None:
        """Who works on the run: the lock decides; a store has none, so what was last told does."""
        if self.status.running or self.activity is None or self.status.complete:
            return self.status.running
        return f"{self.activity.by}, as it told {clock(self.activity.age)} ago"

    @property
    def rate(self) -> float:
        """Sequences per second: of late, or on average where that is not known."""
        return self.activity.rate if self.activity and self.activity.rate else self.status.rate

    @property
    def seconds_left(self) -> float | None:
        return self.status.left / self.rate if self.rate else None

    @property
    def state(self) -> str:
        if self.running:
            return "running"
        return "complete" if self.status.complete else "stopped"

    def as_json(self) -> dict[str, Any]:
        activity = None if self.activity is None else self.activity.as_json()
        told = {"state": self.state, "running": self.running, "activity": activity}
        return {**self.status.as_json(), **told, "note": self.note}

    def line(self) -> str:
        """All of it in one line."""
        status, activity = self.status, self.activity
        left = "?" if self.seconds_left is None else clock(self.seconds_left)
        parts = [f"{status.done}/{status.sequences} sequences", f"{self.rate:.1f}/s"]
        if activity is not None:
            parts.append(f"{counted(activity.in_flight, 'block')} in flight")
            if activity.workers:  # each has finished a block
                parts.append(f"{counted(len(activity.workers), 'worker')} so far")
        parts.append(f"{status.failures} failed")
        if status.attempts:
            parts.append(f"{counted(sum(status.attempts.values()), 'attempt')} failed")
        parts.append(f"{left} left" if self.running else self.state)
        return ", ".join(parts) + (f" ({self.note})" if self.note else "")

    def __str__(self) -> str:
        lines = str(self.status).splitlines()
        if self.running and not self.status.running:
            lines[1] = f"state      running ({self.running})"
        return "\n".join([*lines, *self.activity_lines()])

    def activity_lines(self) -> list[str]:
        """What the driver is doing, as lines; only the note if there is nothing to tell."""
        activity = self.activity
        if activity is None:
            return [f"activity   {self.note}"] if self.note else []
        left = "" if self.seconds_left is None else f", about {clock(self.seconds_left)} left"
        lines = [
            f"of late    {self.rate:.2f} sequences/s{left}",
            f"in flight  {counted(activity.in_flight, 'block')}{_longest(activity)}",
            f"workers    {f'{len(activity.workers)} so far' if activity.workers else NONE_YET}",
        ]
        lines += [f"           {worker_line(worker)}" for worker in activity.workers[:LISTED]]
        if self.note:
            lines.append(f"activity   {self.note}")
        return lines


def worker_line(worker: WorkerActivity) -> str:
    failed = f", {worker.failures} failed" if worker.failures else ""
    ago = clock(max(0.0, time.time() - worker.last))
    blocks = counted(worker.blocks, "block")
    return f"{worker.name} ({worker.device}): {blocks}, {worker.rate:.1f}/s{failed}, last {ago} ago"


def _longest(activity: Activity) -> str:
    if not activity.oldest:
        return ""
    number, since = min(activity.oldest.items(), key=lambda each: each[1])
    return f", block {number} for {clock(max(0.0, time.time() - since))}"


def watched(folder: Folder, status: Status) -> Watched:
    """Put what a driver tells beside the status; what a dead one told is left out."""
    if status.complete and not status.running:
        return Watched(status, None)
    activity = read_activity(folder)
    if isinstance(folder, LocalFolder):
        if status.running is None:
            return Watched(status, None)  # the lock is free: whoever wrote it is gone
        # Who has just taken over may not have written yet.
        if activity is None or not status.running.startswith(f"{activity.by},"):
            return Watched(status, None, "the process that works here has not told anything yet")
    elif activity is None:
        return Watched(status, None, "no process has told that it works here")
    elif not activity.fresh:
        note = f"{activity.by} was last heard of {clock(activity.age)} ago; it has probably ended"
        return Watched(status, None, note)
    if not activity.fresh:
        note = f"told {clock(activity.age)} ago; the process lives, but may hang"
        return Watched(status, activity, note)
    return Watched(status, activity)
