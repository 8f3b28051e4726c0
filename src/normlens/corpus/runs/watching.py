"""The driver's own account of a run while it goes on: what it is doing, and how fast."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, TextIO

from normlens.corpus.engines.base import Engine
from normlens.corpus.runs.entries import sealed, unsealed
from normlens.corpus.runs.folder import Folder, LocalFolder
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.shards import Done, Shard
from normlens.corpus.runs.side_files import ACTIVITY, write_side_file
from normlens.corpus.runs.state import State
from normlens.errors import InputError, NormLensError, OutputError, system_reason

# What a run's driver is doing: shards in flight, workers, and how fast it goes at present.
#
# The driver writes it to a small file in the run's folder every now and then. It is no part of
# the run: the log tells what is done, and the lock who works on it. The file is removed when the
# run comes to its end; a driver that an exception ends leaves it empty.


#: Seconds between two writes, on a disk and in an object store.
EVERY_LOCAL, EVERY_REMOTE = 5.0, 60.0
#: Writes that may be missing before the activity counts as out of date.
_MISSING = 3
#: Shards and workers of which more is told than their number.
LISTED = 500


@dataclass(frozen=True)
class WorkerActivity:
    """What one worker has done since the driver started."""

    name: str  # host:pid
    device: str
    shards: int
    sequences: int
    failures: int
    rate: float  # sequences per second of its working time
    last: float  # when its last shard came, in seconds since 1970


@dataclass(frozen=True)
class Activity:
    """What a driver is doing, at one moment."""

    pid: int
    host: str
    epoch: int  # of the log
    started: float  # seconds since 1970
    written: float
    every: float  # seconds until the next one is due
    sequences: int  # done since it started
    failures: int
    retried: int  # attempts that failed before the shards that are done since came to their end
    rate: float  # sequences per second, of late
    in_flight: int  # shards that were handed out and have not come back
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
        write_side_file(folder, ACTIVITY, sealed(told))


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
_WORKER_NUMBERS = ("shards", "sequences", "failures", "rate", "last")


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
        self._before = (state.sequences + state.failures, state.failures, len(state.done))
        self._heartbeat = heartbeat
        self._lines: TextIO | None = None
        self._every = EVERY_LOCAL if isinstance(folder, LocalFolder) else EVERY_REMOTE
        self._lock = threading.Lock()
        self._started = time.time()
        self._in_flight: dict[int, float] = {}
        self._workers: dict[str, WorkerActivity] = {}
        self._seconds: dict[str, float] = {}  # worker → its working time
        self._recent: deque[tuple[float, int]] = deque([(self._started, 0)])  # time, sequences
        self._sequences = self._failures = self._retried = self._shards = 0
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
            if kind is None:
                self._folder.remove(ACTIVITY)
            else:
                # An empty file shows nobody as alive, and tells the next driver that there may be
                # files to join or to remove, even if all shards are done.
                write_side_file(self._folder, ACTIVITY, b"")

    # What happens -------------------------------------------------------------------------------

    def handed_out(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Pass shards on to an engine, and note them."""
        for shard in shards:
            with self._lock:
                self._in_flight[shard.number] = time.time()
            yield shard

    def finished(self, done: Done) -> None:
        """Note a shard that came back."""
        now, count = time.time(), done.sequences + done.failures
        name = f"{done.by.get('host', '?')}:{done.by.get('pid', '?')}"
        with self._lock:
            self._in_flight.pop(done.number, None)
            self._sequences += count
            self._failures += done.failures
            self._retried += max(0, done.attempt - 1)
            self._shards += 1
            self._recent.append((now, self._sequences))
            while len(self._recent) > 2 and self._recent[1][0] < now - LATELY:
                self._recent.popleft()
            seconds = self._seconds.get(name, 0.0) + max(0.0, done.finished - done.started)
            self._seconds[name] = seconds
            before = self._workers.pop(name, None)  # the last to finish stands last
            sequences = count + (before.sequences if before else 0)
            self._workers[name] = WorkerActivity(
                name=name,
                device=str(done.by.get("device", "?")),
                shards=1 + (before.shards if before else 0),
                sequences=sequences,
                failures=done.failures + (before.failures if before else 0),
                rate=sequences / seconds if seconds else 0.0,
                last=now,
            )

    def activity(self) -> Activity:
        """All of it at this moment."""
        now = time.time()
        with self._lock:
            since, count = self._recent[0]
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
                rate=(self._sequences - count) / max(now - since, 1e-3),
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
        done, failures, shards = self._before
        left = self._manifest.sequences - done - activity.sequences
        return {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "run": self._folder.everywhere,
            "state": state,
            "sequences": self._manifest.sequences,
            "done": done + activity.sequences,
            "failures": failures + activity.failures,
            "shards": self._manifest.shards,
            "shards_done": shards + self._shards,
            "in_flight": activity.in_flight,
            "retried": activity.retried,
            "rate": round(activity.rate, 3),
            "seconds_left": round(left / activity.rate, 1) if activity.rate else None,
            "epoch": self._epoch,
            "workers": {
                worker.name: {"shards": worker.shards, "rate": round(worker.rate, 3)}
                for worker in activity.workers
            },
        }


class WatchedEngine(Engine):
    """An engine whose work is noted."""

    def __init__(self, engine: Engine, watching: Watching):
        self._engine, self._watching = engine, watching
        self.identity, self.by = engine.identity, engine.by

    def compute(self, shards: Iterable[Shard], *more: Any, **named: Any) -> Iterator[Done]:
        for done in self._engine.compute(self._watching.handed_out(shards), *more, **named):
            self._watching.finished(done)
            yield done

    def has_result(self) -> bool:
        return self._engine.has_result()

    def close(self) -> None:
        self._engine.close()

    def abandon(self) -> None:
        self._engine.abandon()


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
