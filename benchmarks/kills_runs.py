"""Runs as a user starts them, for `kills.py`: their processes, and what their folders hold."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from normlens.corpus.runs.folder import TEMPORARY, LocalFolder
from normlens.corpus.runs.ledger import TABLES, State, read_state, strays
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.options import parse_settings
from normlens.corpus.runs.status import read_heartbeat

#: A run, or one that goes on, with options that the command line does not have.
_RUN = """
import json, sys, normlens
given = json.loads(sys.argv[1])
try:
    (normlens.run if "model" in given else normlens.resume)(**given)
except normlens.NormLensError as error:
    sys.exit(print(error, file=sys.stderr) or 2)
"""


def command(given: dict[str, Any]) -> list[str]:
    """The command of a process that does a run; without a model it goes on with one."""
    return [sys.executable, "-c", _RUN, json.dumps(given)]


class Driver:
    """A run as a user starts it: a process, in a group of its own with its workers."""

    def __init__(self, out: Path, options: argparse.Namespace):
        self.out, self.started = out, time.monotonic()
        self._left, self._begun = half_written(out), len(done_numbers(out))  # by those before it
        given: dict[str, Any] = {"out": str(out), "device": options.device}
        given |= {"workers": options.workers, "batch_size": options.batch_size}
        given |= {"file_size": options.file_size, "file_minutes": options.file_minutes}
        if not (out / MANIFEST).exists():
            given |= {"model": "minilm", "data": f"sst2:{options.data}"}
            given |= {"measures": options.measures, "block_size": options.block_size}
            given |= {"settings": parse_settings(options.set), "limit": options.sequences or None}
        self.said = out.with_suffix(".log")
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                command(given),
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def is_writing(self) -> bool:
        return not half_written(self.out) <= self._left

    @property
    def is_at_work(self) -> bool:
        """Whether its workers have blocks: one is done, or it says that it has handed some out."""
        return bool(self.handed_out()) or len(done_numbers(self.out)) > self._begun

    def workers(self) -> list[int]:
        """The processes of its group that wait for its calls."""
        return [
            int(place.name)
            for place in Path("/proc").iterdir()
            if place.name.isdecimal() and is_worker(place, self.process.pid)
        ]

    def handed_out(self) -> set[int]:
        """Blocks in flight, as the driver itself last said, at most some seconds ago."""
        beat = read_heartbeat(LocalFolder(self.out))
        if beat is None or beat.pid != self.process.pid:
            return set()
        return {int(number) for number in beat.in_flight}

    def finish(self) -> None:
        """Wait until it ends by itself, which must be without an error."""
        if self.process.wait() != 0:
            last = self.said.read_text(errors="replace").strip().splitlines()[-1:]
            raise SystemExit(f"a run ended with status {self.process.returncode}: {last}")

    def stop(self) -> None:
        """Kill it with its workers, unless it has ended."""
        if not self.ended:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def is_worker(place: Path, group: int) -> bool:
    """Whether a folder of /proc is that of a worker in this group of processes."""
    try:
        # Behind the name, which is in brackets: state, parent, group.
        state, _, its_group = (place / "stat").read_text().rpartition(")")[2].split()[:3]
        command = (place / "cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return False
    return int(its_group) == group and state != "Z" and b"spawn_main" in command


def state_of(out: Path) -> State | None:
    """What the run's records say; None before the run has begun."""
    if not (out / MANIFEST).exists():
        return None
    folder = LocalFolder(out)
    return read_state(folder, Manifest.load(folder), salvage=True)


def done_numbers(out: Path) -> set[int]:
    """The blocks that are done, as the records say; none before the run has begun."""
    state = state_of(out)
    if state is None:
        return set()
    return {number for record in state.records.values() for number in record.blocks}


def unvouched(out: Path) -> list[str]:
    """Files of tables and records, and half-written ones, that nothing vouches for."""
    state = state_of(out)
    return [] if state is None else strays(state, LocalFolder(out).names(), state.epoch)


def half_written(out: Path) -> set[Path]:
    """Files of tables that are not complete."""
    return set(out.glob(f"{TABLES}/*/.*{TEMPORARY}"))
