"""A run of real maps that is killed again and again, compared bit by bit with one that is not.

    python benchmarks/kills.py --sequences 2000      # the first sequences, to try it
    python benchmarks/kills.py                       # all of SST-2 train, which takes hours of CPU

MiniLM on SST-2 train (--data, or sst2/train.tsv in NORMLENS_TEST_DATA), two local workers. One run
is left alone. The other one is killed with SIGKILL at moments that --seed chooses, spread over its
shards, and resumed each time:

    all          the driver and its workers at once
    compaction   the same, while a compacted file is being written
    worker       one worker; the run goes on by itself
    driver       the driver alone; its workers lose whom they work for
    stalled      the driver, while its workers hang; they wake up when the next one is at work

Then the tables of both runs are compared: schemas, rows in their order, and the bytes of every
column. Every file has to match its record, and no file may be left that has none. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from normlens.corpus import Run
from normlens.corpus.runs.activity import read_activity
from normlens.corpus.runs.folder import TEMPORARY, LocalFolder
from normlens.corpus.runs.log import read_state
from normlens.corpus.runs.log_files import ROOT as LOG
from normlens.corpus.runs.log_files import log_file
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.merging import merging_sql
from normlens.corpus.runs.shards import PARTS, ROOT

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
#: Kinds of kills, in the shares in which they come.
KINDS = ("all", "compaction", "worker", "all", "driver", "compaction", "all", "worker", "stalled")
#: Rows that are hashed together.
BLOCK = 1 << 16
#: Seconds between two looks at a run.
LOOK = 0.2


@dataclass(frozen=True)
class Kill:
    """A kill and what it left."""

    kind: str
    done: int  # shards that the log has afterwards
    unfinished: int  # shards that the driver said it had handed out, and that are not done
    files: int  # that no record vouches for
    seconds: float  # since this driver was started


# Runs ---------------------------------------------------------------------------------------------


class Driver:
    """A run as a user starts it: a process, in a group of its own with its workers."""

    def __init__(self, out: Path, options: argparse.Namespace):
        self.out, self.started = out, time.monotonic()
        self._left = half_written(out)  # by those before it
        how = [f"--workers={options.workers}", f"--batch-size={options.batch_size}"]
        how += [f"--file-size={options.file_size}"]
        if (out / MANIFEST).exists():
            what = ["--resume", str(out)]
        else:
            what = ["--model=minilm", f"--data=sst2:{options.data}", f"--out={out}"]
            what += [f"--measures={options.measures}", f"--shard-size={options.shard_size}"]
            what += [f"--set={setting}" for setting in options.set]
            what += [f"--limit={options.sequences}"] if options.sequences else []
        self.said = out.with_suffix(".log")
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "normlens", "run", *what, *how],
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def is_compacting(self) -> bool:
        return not half_written(self.out) <= self._left

    def workers(self) -> list[int]:
        listed = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,pgid=,stat=,args="],
            capture_output=True,
            text=True,
            check=True,
        )
        rows = (line.split(None, 3) for line in listed.stdout.splitlines())
        return [
            int(pid)
            for pid, group, state, *command in rows
            if int(group) == self.process.pid and "spawn_main" in str(command) and state[0] != "Z"
        ]

    def handed_out(self) -> set[int]:
        """Shards in flight, as the driver itself last said, at most some seconds ago."""
        activity = read_activity(LocalFolder(self.out))
        if activity is None or activity.pid != self.process.pid:
            return set()
        return {int(number) for number in activity.oldest}

    def finish(self) -> None:
        """Wait until it ends by itself, which must be without an error."""
        if self.process.wait() != 0:
            last = self.said.read_text(errors="replace").strip().splitlines()[-1:]
            raise SystemExit(f"a run ended with status {self.process.returncode}: {last}")


def done_numbers(out: Path) -> set[int]:
    """The shards that are done, as the log says; none before the run has begun."""
    if not (out / MANIFEST).exists():
        return set()
    folder = LocalFolder(out)
    return set(read_state(folder, Manifest.load(folder), salvage=True).numbers.tolist())


def unvouched(out: Path) -> list[str]:
    """Files of tables, and half-written ones, that no record vouches for."""
    if not (out / MANIFEST).exists():
        return []
    folder = LocalFolder(out)
    manifest = Manifest.load(folder)
    state = read_state(folder, manifest, salvage=True)
    listed = {file.name for table in manifest.tables for file in state.files(table)}
    names = [*folder.names(ROOT), *folder.names(PARTS)]
    names += [name for name in folder.names(LOG) if name.endswith(TEMPORARY)]
    return [name for name in names if name not in listed]


def half_written(out: Path) -> set[Path]:
    """Compacted files that are not complete."""
    return set(out.glob(f"{PARTS}/*/.*{TEMPORARY}"))


# Kills --------------------------------------------------------------------------------------------


def killed_run(out: Path, options: argparse.Namespace, shards: int) -> list[Kill]:
    """Run to the end in spite of all kills."""
    chance = random.Random(options.seed)
    moments = sorted(chance.randint(0, shards * 19 // 20) for _ in range(options.kills))
    kinds = [KINDS[number % len(KINDS)] for number in range(options.kills)]
    chance.shuffle(kinds)
    kills: list[Kill] = []
    driver = Driver(out, options)
    orphans: list[int] = []
    for kind, moment in zip(kinds, moments, strict=True):
        begun = len(done_numbers(out))
        while not driver.ended and (done := len(done_numbers(out))) < moment:
            if done > begun:
                wake(orphans)
            time.sleep(LOOK)
        time.sleep(chance.uniform(0, options.delay))
        while not driver.ended and not is_ready(driver, kind):
            time.sleep(0.001)
        if kind == "compaction":
            time.sleep(chance.uniform(0, 0.1))
        if driver.ended:
            driver.finish()
            raise SystemExit(f"the run was complete after {len(kills)} kills; give it more shards")
        wake(orphans)
        orphans = strike(driver, kind, chance)
        done_now = done_numbers(out)
        lost = len(driver.handed_out() - done_now)
        seconds = time.monotonic() - driver.started
        kills.append(Kill(kind, len(done_now), lost, len(unvouched(out)), seconds))
        print(f"{len(kills)}: {kills[-1]}", file=sys.stderr, flush=True)
        if kind != "worker":
            driver = Driver(out, options)
    while not driver.ended and len(done_numbers(out)) <= kills[-1].done:
        time.sleep(LOOK)
    wake(orphans)
    driver.finish()
    return kills


def is_ready(driver: Driver, kind: str) -> bool:
    """Whether what is to be killed is there: a worker at work, a file that is being written."""
    if kind == "compaction":
        return driver.is_compacting
    return kind not in ("worker", "stalled") or bool(driver.handed_out())


def strike(driver: Driver, kind: str, chance: random.Random) -> list[int]:
    """Kill what the kind says; the workers that hang afterwards."""
    if kind == "worker":
        os.kill(chance.choice(driver.workers()), signal.SIGKILL)
        return []
    workers = driver.workers() if kind == "stalled" else []
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    if kind in ("driver", "stalled"):
        os.kill(driver.process.pid, signal.SIGKILL)
    else:
        os.killpg(driver.process.pid, signal.SIGKILL)
    driver.process.wait()
    return workers


def wake(orphans: list[int]) -> None:
    """Let workers go on that hang since their driver died."""
    for worker in orphans:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
    orphans.clear()


# Tables -------------------------------------------------------------------------------------------


def digests(run: Run) -> dict[str, tuple[int, str]]:
    """Rows of every table, and a hash of its schema and of its columns' bytes in their order."""
    return {name: digest(run, name) for name in run.tables}


def digest(run: Run, name: str) -> tuple[int, str]:
    rows, made = 0, hashlib.sha256()
    for number, block in enumerate(blocks(run, name)):
        if number == 0:
            made.update(repr([(field.name, str(field.type)) for field in block.schema]).encode())
        rows += len(block)
        for column in block.columns:
            for part in column_bytes(column):
                made.update(part)
    return rows, made.hexdigest()


def blocks(run: Run, name: str) -> Iterator[pa.Table]:
    """A table in blocks of the same numbers of rows, however many files it lies in."""
    if merging_sql(run.manifest, name) is not None:  # files hold parts, which are summed
        yield pa.Table.from_pandas(run.table(name), preserve_index=False)
        return
    folder = LocalFolder(run.folder.url)
    rest: pa.Table | None = None
    for file in read_state(folder, run.manifest).files(name):
        table = pq.ParquetFile(folder.path / file.name).read()
        table = pa.table([plain(column) for column in table.columns], table.column_names)
        rest = table if rest is None else pa.concat_tables([rest, table])
        while len(rest) >= BLOCK:
            yield rest[:BLOCK]
            rest = rest[BLOCK:]
    if rest is not None:
        yield rest


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values instead of numbers in a dictionary, which each file has its own of."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def column_bytes(column: pa.ChunkedArray) -> Iterator[bytes]:
    """The bytes of a column: which values are null, and the others."""
    yield np.asarray(pc.is_null(column)).tobytes()
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        yield np.asarray(pc.fill_null(column, pa.scalar(0, kind))).tobytes()
        return
    texts = [str(value) for value in column.to_pylist()]
    yield np.array([len(text) for text in texts]).tobytes()
    yield "".join(texts).encode()


def problems(out: Path, sequences: int) -> list[str]:
    """What is wrong with a complete run: files, leftovers, sequences that are not there once."""
    run = Run.open(out)
    wrong = [str(problem) for problem in run.check().problems]
    wrong += [f"{name}: no record vouches for it" for name in unvouched(out)]
    files = [log_file(name) for name in run.folder.names(LOG)]
    epoch = max(file.epoch for file in files if file is not None)
    wrong += [f"{file.name}: left" for file in files if file is not None and file.epoch < epoch]
    both = "SELECT index FROM sequences UNION ALL SELECT index FROM failures"
    counts = run.sql(f"SELECT count(*), count(DISTINCT index), max(index) FROM ({both})")
    if counts.iloc[0].tolist() != [sequences, sequences, sequences - 1]:
        wrong.append(f"sequences, different ones, the last: {counts.iloc[0].tolist()}")
    return wrong


# Report -------------------------------------------------------------------------------------------


def report(kills: list[Kill], run: Run, rows: dict[str, tuple[int, str]], wrong: list[str]) -> str:
    """The kills and the comparison as Markdown."""
    shards, files = run.manifest.shards, run.check().files
    lines = [
        f"{run.manifest.sequences:,} sequences, {shards} shards; {len(kills)} kills, "
        f"{sum(kill.kind != 'worker' for kill in kills)} resumes; {files} files at the end.",
        "",
        "| | killed | shards done | handed out and not done | files without a record |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {number} | {kill.kind} | {kill.done} | {kill.unfinished} | {kill.files} |"
        for number, kill in enumerate(kills, 1)
    ]
    lines += ["", "| table | rows | SHA-256 of schema and columns |", "|---|---|---|"]
    lines += [f"| `{name}` | {count:,} | {sha[:16]}… |" for name, (count, sha) in rows.items()]
    again = sum(kill.unfinished for kill in kills)
    verdict = "all tables are bit-equal, and every file has its record" if not wrong else ""
    lines += ["", f"at most {again} of {shards} shards were handed out again; {verdict or wrong}"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = Path(os.environ.get("NORMLENS_TEST_DATA", SHARED))
    parser.add_argument("--data", type=Path, default=folder / "sst2" / "train.tsv")
    parser.add_argument("--sequences", type=int, help="the first ones; default: all")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--delay", type=float, default=5.0, help="seconds behind them, at most")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--measures", default="similarity,mixing,norms")
    parser.add_argument("--set", action="append", default=[], help="an option of a measure")
    parser.add_argument("--shard-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16, help="short texts are faster so")
    parser.add_argument("--file-size", type=float, default=8, help="MB: small, so many compactions")
    parser.add_argument("--together", action="store_true", help="both runs at the same time")
    parser.add_argument("--folder", type=Path, help="keep both runs here; default: nowhere")
    options = parser.parse_args()
    place = options.folder or Path(tempfile.mkdtemp())
    place.mkdir(parents=True, exist_ok=True)
    try:
        alone = Driver(place / "reference", options)
        if not options.together:
            alone.finish()
        while not alone.ended and not (alone.out / MANIFEST).exists():
            time.sleep(LOOK)
        shards = Manifest.load(LocalFolder(alone.out)).shards
        kills = killed_run(place / "killed", options, shards)
        alone.finish()
        expected, killed = Run.open(place / "reference"), Run.open(place / "killed")
        rows, others = digests(expected), digests(killed)
        wrong = [f"{name}: other bits" for name in rows if rows[name] != others[name]]
        wrong += [f"{name}: one run has it" for name in rows.keys() ^ others.keys()]
        wrong += problems(place / "killed", expected.manifest.sequences)
        told = {"kills": [asdict(kill) for kill in kills], "tables": rows, "wrong": wrong}
        (place / "kills.json").write_text(json.dumps(told, indent=1) + "\n")
        print(report(kills, killed, rows, wrong))
    finally:
        if options.folder is None:
            shutil.rmtree(place, ignore_errors=True)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
