"""How far a run is: from its records, and from the heartbeat of the driver that works on it."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any, TextIO

from normlens.corpus.runs.folder import Folder, LocalFolder
from normlens.corpus.runs.ledger import (
    HEARTBEAT,
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

# The driver's heartbeat: a small file that it writes while it works, and lines of JSON. It is no
# part of the run. The driver removes the file at its end; one that is killed leaves it.


#: Seconds between two heartbeats, on a disk and in an object store, and between two lines of JSON.
EVERY_LOCAL, EVERY_REMOTE, LINE_EVERY = 5.0, 60.0, 60.0
#: Heartbeats that may be missing before the last one counts as out of date.
_MISSING = 3
#: Seconds that the present rate is taken over.
LATELY = 120.0


@dataclass
class Heartbeat:
    """What a driver is doing, at one moment."""

    run: str
    state: str  # running, complete or stopped
    pid: int
    host: str
    epoch: int
    time: float  # seconds since 1970
    every: float  # seconds until the next one is due
    sequences: int
    done: int  # recorded, as the blocks are
    failures: int
    blocks: int
    blocks_done: int
    retried: int = 0  # workers that died with blocks that are done since
    rate: float = 0.0  # sequences per second, of late
    in_flight: dict[str, float] = field(default_factory=dict)  # block that is at work → since when
    #: host:pid → device, blocks, sequences, failures, seconds of work, and when the last was done
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def age(self) -> float:
        return max(0.0, time.time() - self.time)

    @property
    def fresh(self) -> bool:
        """Whether it was written when the last one was due, or soon after."""
        return self.age <= _MISSING * self.every + EVERY_LOCAL

    @property
    def by(self) -> str:
        return f"pid {self.pid} on {self.host}"

    def write(self, folder: Folder) -> None:
        folder.write(HEARTBEAT, sealed(asdict(self)))


def read_heartbeat(folder: Folder) -> Heartbeat | None:
    """Read the last heartbeat; None if there is none, or if it is damaged."""
    try:
        return Heartbeat(**unsealed(folder.read(HEARTBEAT) or b""))
    except (InputError, ValueError, TypeError):
        return None


class HeartbeatWriter:
    """Notes what goes out to workers and comes back, and writes heartbeats from its own thread.

    Writing must not disturb the run: what cannot be written is tried again when the next is due.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        state: State,
        epoch: int,
        lines: str | None = None,
    ):
        self._folder, self._place = folder, lines
        self._lines: TextIO | None = None
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._recent: deque[tuple[float, int]] = deque([(time.time(), 0)])  # time, sequences
        self._beat = Heartbeat(
            run=folder.everywhere,
            state="running",
            pid=os.getpid(),
            host=socket.gethostname(),
            epoch=epoch,
            time=time.time(),
            every=EVERY_LOCAL if isinstance(folder, LocalFolder) else EVERY_REMOTE,
            sequences=manifest.sequences,
            done=state.sequences + state.failures,
            failures=state.failures,
            blocks=manifest.blocks,
            blocks_done=state.blocks_done,
        )
        self._thread = threading.Thread(target=self._write, name="normlens-heartbeat", daemon=True)

    def __enter__(self) -> HeartbeatWriter:
        if self._place is not None:
            self._lines = _opened(self._place)
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
            self._folder.remove([HEARTBEAT])

    def handed_out(self, number: int) -> None:
        """Note a block that goes out to a worker."""
        with self._lock:
            self._beat.in_flight.setdefault(str(number), time.time())

    def computed(self, number: int, sequences: int) -> None:
        """Note a block that is computed, although its files may not be written yet."""
        now = time.time()
        with self._lock:
            self._beat.in_flight.pop(str(number), None)
            self._recent.append((now, self._recent[-1][1] + sequences))
            while len(self._recent) > 2 and self._recent[1][0] < now - LATELY:
                self._recent.popleft()

    def recorded(self, files: FileSet) -> None:
        """Note blocks that are recorded."""
        beat, count = self._beat, files.sequences + files.failures
        name = f"{files.by.get('host', '?')}:{files.by.get('pid', '?')}"
        none = {"device": files.by.get("device", "?"), "blocks": 0, "sequences": 0, "failures": 0}
        with self._lock:
            beat.done += count
            beat.failures += files.failures
            beat.retried += sum(files.deaths.values())
            beat.blocks_done += len(files.blocks)
            worker = beat.workers.pop(name, {**none, "seconds": 0.0})
            worker["blocks"] += len(files.blocks)
            worker["sequences"] += count
            worker["failures"] += files.failures
            worker["seconds"] += max(0.0, files.finished - files.started)
            beat.workers[name] = {**worker, "last": time.time()}  # the last to finish stands last

    def beat(self, state: str = "running") -> Heartbeat:
        """All of it at this moment."""
        now = time.time()
        with self._lock:
            (since, before), (_, count) = self._recent[0], self._recent[-1]
            rate = (count - before) / max(now - since, 1e-3)
            beat = replace(self._beat, state=state, time=now, rate=rate)
            beat.in_flight, beat.workers = dict(beat.in_flight), dict(beat.workers)
            return beat

    def _write(self) -> None:
        line_due = time.monotonic() + LINE_EVERY
        while True:
            with suppress(NormLensError):
                self.beat().write(self._folder)
            if time.monotonic() >= line_due:
                line_due += LINE_EVERY
                self._line("running")
            if self._ended.wait(min(self._beat.every, LINE_EVERY)):
                return

    def _line(self, state: str) -> None:
        if self._lines is not None:
            with suppress(OSError, ValueError):
                print(json.dumps(asdict(self.beat(state))), file=self._lines, flush=True)


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


# How far a run is, and what its driver is doing.


#: The stages that a sequence goes through, in their order.
STAGES = ("reading", "tokenising", "maps", "measures", "tables", "writing")
#: Blocks of which attempts are shown.
SHOWN = 5


@dataclass(frozen=True)
class Status:
    """What is done and left, how fast it went, where the time went, and what goes on now."""

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
    heartbeat: Heartbeat | None = None  # of the driver that works on it now
    note: str = ""  # why there is no heartbeat, or what to think of it

    @property
    def left(self) -> int:
        return self.sequences - self.done

    @property
    def complete(self) -> bool:
        return self.blocks_done == self.blocks

    @property
    def state(self) -> str:
        if self.running:
            return "running"
        return "complete" if self.complete else "stopped"

    @property
    def rate(self) -> float:
        """Sequences per second: of late, or on average where that is not known."""
        if self.heartbeat is not None and self.heartbeat.rate:
            return self.heartbeat.rate
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        return self.left / self.rate if self.rate else None

    def as_json(self) -> dict[str, Any]:
        derived = ("left", "complete", "state", "rate", "seconds_left")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def line(self) -> str:
        """All of it in one line."""
        beat = self.heartbeat
        left = "?" if self.seconds_left is None else clock(self.seconds_left)
        parts = [f"{self.done}/{self.sequences} sequences", f"{self.rate:.1f}/s"]
        if beat is not None:
            parts.append(f"{counted(len(beat.in_flight), 'block')} in flight")
            parts.append(f"{counted(len(beat.workers), 'worker')} so far")
        parts.append(f"{self.failures} failed")
        if self.attempts:
            parts.append(f"{counted(sum(self.attempts.values()), 'attempt')} failed")
        parts.append(f"{left} left" if self.running else self.state)
        return ", ".join(parts) + (f" ({self.note})" if self.note else "")

    def __str__(self) -> str:
        state = f"running ({self.running})" if self.running else self.state
        state += "; go on with normlens run --resume" if self.state == "stopped" else ""
        left = "" if not self.left or not self.rate else f", about {clock(self.seconds_left or 0)}"
        tokens = self.tokens / self.seconds if self.seconds else 0.0
        failed = f" of {self.done}" if self.failures else ""
        lines = [
            f"run        {self.model} on {self.data}",
            f"state      {state}",
            f"done       {self.done} of {self.sequences} sequences "
            f"({self.blocks_done} of {self.blocks} blocks)",
            f"left       {self.left} sequences{left}",
            f"rate       {self.rate:.2f} sequences/s, {tokens:.0f} tokens/s",
            f"failures   {self.failures}{failed}",
        ]
        if self.attempts:
            lines.append(f"attempts   {self._tried()}")
        total = sum(self.stages.values())
        shares = [
            f"{stage} {seconds / total:.0%}" for stage, seconds in self.stages.items() if total
        ]
        lines.append(f"time       {', '.join(shares) or 'none yet'}")
        if self.heartbeat is not None:
            lines += _beat_lines(self.heartbeat)
        return "\n".join([*lines, f"driver     {self.note}"] if self.note else lines)

    def _tried(self) -> str:
        """The blocks that were in flight in workers that died, most deaths first."""
        most = sorted(self.attempts.items(), key=lambda each: (-each[1], each[0]))
        named = [f"block {number}: {count} failed" for number, count in most[:SHOWN]]
        more = len(most) - len(named)
        return ", ".join(named) + (f", and {more} more blocks" if more else "")


def _beat_lines(beat: Heartbeat) -> list[str]:
    """What a driver is doing, as lines."""
    now, longest = time.time(), ""
    if beat.in_flight:
        number, since = min(beat.in_flight.items(), key=lambda each: each[1])
        longest = f", block {number} for {clock(max(0.0, now - since))}"
    lines = [
        f"in flight  {counted(len(beat.in_flight), 'block')}{longest}",
        f"workers    {f'{len(beat.workers)} so far' if beat.workers else 'none has reported yet'}",
    ]
    for name, worker in reversed(beat.workers.items()):
        rate = worker["sequences"] / worker["seconds"] if worker["seconds"] else 0.0
        failed = f", {worker['failures']} failed" if worker["failures"] else ""
        lines.append(
            f"           {name} ({worker['device']}): {counted(worker['blocks'], 'block')}, "
            f"{rate:.1f}/s{failed}, last {clock(max(0.0, now - worker['last']))} ago"
        )
    return lines


def status_of(folder: Folder, manifest: Manifest) -> Status:
    """Read the status of the run in a folder; its tables are not read."""
    state = read_state(folder, manifest, salvage=True)
    running, heartbeat, note = _driver(folder, state.blocks_done == manifest.blocks)
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
        running=running,
        attempts={number: count for number, count in sorted(state.deaths.items()) if count},
        heartbeat=heartbeat,
        note=note,
    )


def _driver(folder: Folder, complete: bool) -> tuple[str | None, Heartbeat | None, str]:
    """Who works on a run, its heartbeat unless it is dead, and what to think of it."""
    running, local = holder(folder), isinstance(folder, LocalFolder)
    if running is None and (local or complete):
        return None, None, ""  # the lock is free: whoever wrote a heartbeat is gone
    beat = read_heartbeat(folder)
    if local and (beat is None or not str(running).startswith(f"{beat.by},")):
        # Who has just taken over may not have written yet.
        return running, None, "it has not written a heartbeat yet"
    if beat is None:
        return None, None, "there is no heartbeat, so none works here as far as is known"
    ago = clock(beat.age)
    if local:
        late = f"it was last heard of {ago} ago; the process lives, but may hang"
        return running, beat, "" if beat.fresh else late
    if not beat.fresh:
        return None, None, f"{beat.by} was last heard of {ago} ago; it has probably ended"
    return f"{beat.by}, as it said {ago} ago", beat, ""


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Add up the time that spans cover together, without overlaps and breaks."""
    total, until = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return total
