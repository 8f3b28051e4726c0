"""How far a run is, from the records of its shards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from normlens.corpus.runs.folder_base import Folder
from normlens.corpus.runs.lock import holder
from normlens.corpus.runs.log_reading import read_state
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.progress import clock

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
        shards_done=len(state.done),
        seconds=_covered(state.spans.tolist()),
        stages=dict.fromkeys(STAGES, 0.0) | state.seconds,
        running=holder(folder),
        attempts=dict(sorted(state.attempts.items())),
    )


def _covered(spans: Iterable[list[float]]) -> float:
    """Add up the time that spans cover together, without overlaps and breaks."""
    total, until = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return total
