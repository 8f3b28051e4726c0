"""How far a run is, from its records and from what its driver says."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from normlens.corpus.runs.folder import Folder, LocalFolder
from normlens.corpus.runs.ledger import read_state
from normlens.corpus.runs.lock import holder
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.progress import clock
from normlens.corpus.runs.watching import LISTED, Activity, WorkerActivity, read_activity
from normlens.errors import counted

# How far a run is, from the records of its shards.


#: The stages that a sequence goes through, in their order.
STAGES = ("reading", "tokenising", "maps", "measures", "tables", "writing")
#: Shards of which attempts are shown.
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
    shards: int
    shards_done: int
    seconds: float  # during which at least one worker was busy
    stages: dict[str, float]  # seconds, summed over workers
    running: str | None  # who works on it now
    attempts: dict[int, int] = field(default_factory=dict)  # shard → tries that failed

    @property
    def left(self) -> int:
        return self.sequences - self.done

    @property
    def complete(self) -> bool:
        return self.shards_done == self.shards

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
            f"({self.shards_done} of {self.shards} shards)",
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
        """The shards that were in flight in workers that died, most deaths first."""
        most = sorted(self.attempts.items(), key=lambda each: (-each[1], each[0]))
        named = [f"shard {number}: {count} failed" for number, count in most[:SHOWN]]
        more = len(most) - len(named)
        return ", ".join(named) + (f", and {more} more shards" if more else "")

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
        shards=manifest.shards,
        shards_done=state.shards_done,
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


NONE_YET = "none has finished a shard yet"


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
            parts.append(f"{counted(activity.in_flight, 'shard')} in flight")
            if activity.workers:  # each has finished a shard
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
            f"in flight  {counted(activity.in_flight, 'shard')}{_longest(activity)}",
            f"workers    {f'{len(activity.workers)} so far' if activity.workers else NONE_YET}",
        ]
        lines += [f"           {worker_line(worker)}" for worker in activity.workers[:LISTED]]
        if self.note:
            lines.append(f"activity   {self.note}")
        return lines


def worker_line(worker: WorkerActivity) -> str:
    failed = f", {worker.failures} failed" if worker.failures else ""
    ago = clock(max(0.0, time.time() - worker.last))
    shards = counted(worker.shards, "shard")
    return f"{worker.name} ({worker.device}): {shards}, {worker.rate:.1f}/s{failed}, last {ago} ago"


def _longest(activity: Activity) -> str:
    if not activity.oldest:
        return ""
    number, since = min(activity.oldest.items(), key=lambda each: each[1])
    return f", shard {number} for {clock(max(0.0, time.time() - since))}"


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
