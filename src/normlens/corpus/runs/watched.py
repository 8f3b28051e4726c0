"""How far a run is and what its driver is doing, put together for whoever watches it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from normlens.corpus.runs.activity import LISTED, Activity, WorkerActivity, read_activity
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.folder_base import Folder
from normlens.corpus.runs.progress import clock
from normlens.corpus.runs.status import Status
from normlens.errors import counted

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
