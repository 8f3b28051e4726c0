"""What a run's driver is doing: shards in flight, workers, and how fast it goes at present.

The driver writes it to a small file in the run's folder every now and then. It is no part of the
run: the log tells what is done, and the lock who works on it. The file is removed when the run
comes to its end; a driver that an exception ends leaves it empty.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

from normlens.corpus.runs.entries import sealed, unsealed
from normlens.corpus.runs.folder_base import Folder
from normlens.corpus.runs.side_files import ACTIVITY, write_side_file
from normlens.errors import InputError

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
