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
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, TextIO

from normlens.corpus.runs.folder import Folder, LocalFolder
from normlens.corpus.runs.ledger import ACTIVITY, State, Written, sealed, unsealed
from normlens.corpus.runs.manifest import Manifest
from normlens.errors import InputError, NormLensError, OutputError, system_reason

# What a run's driver is doing: shards in flight, workers, and how fast it goes at present.
#
# The driver writes it to a small file in the run's folder every now and then. It is no part of
# the run: the records tell what is done, and the lock who works on it. The driver removes the file
# at its end; one that is killed leaves it.


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
    last: float  # when its last shards came, in seconds since 1970


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
    retried: int  # workers that died with the shards that are done since
    rate: float  # sequences per second, of late
    in_flight: int  # shards that were handed out and are not recorded yet
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
        self._before = (state.sequences + state.failures, state.failures, state.shards_done)
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
            self._folder.remove(ACTIVITY)

    # What happens -------------------------------------------------------------------------------

    def handed_out(self, number: int) -> None:
        """Note a shard that goes out to a worker."""
        with self._lock:
            self._in_flight.setdefault(number, time.time())

    def finished(self, written: Written) -> None:
        """Note shards that came back."""
        now, count = time.time(), written.sequences + written.failures
        name = f"{written.by.get('host', '?')}:{written.by.get('pid', '?')}"
        with self._lock:
            for number in written.shards:
                self._in_flight.pop(number, None)
            self._sequences += count
            self._failures += written.failures
            self._retried += sum(written.deaths.values())
            self._shards += len(written.shards)
            self._recent.append((now, self._sequences))
            while len(self._recent) > 2 and self._recent[1][0] < now - LATELY:
                self._recent.popleft()
            seconds = self._seconds.get(name, 0.0) + max(0.0, written.finished - written.started)
            self._seconds[name] = seconds
            before = self._workers.pop(name, None)  # the last to finish stands last
            sequences = count + (before.sequences if before else 0)
            self._workers[name] = WorkerActivity(
                name=name,
                device=str(written.by.get("device", "?")),
                shards=len(written.shards) + (before.shards if before else 0),
                sequences=sequences,
                failures=written.failures + (before.failures if before else 0),
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
