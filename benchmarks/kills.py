"""A run of real maps that is killed again and again, compared bit by bit with one that is not.

    python benchmarks/kills.py --sequences 2000      # the first sequences, to try it
    python benchmarks/kills.py                       # all of SST-2 train, which takes hours of CPU
    python benchmarks/kills.py --device cuda --batch-size auto --delay 1 --together    # minutes

MiniLM on SST-2 train (--data, or sst2/train.tsv in NORMLENS_TEST_DATA), two local workers. One run
is left alone. The other one is killed with SIGKILL at moments that --seed chooses, spread over its
blocks, and resumed each time:

    all          the driver and its workers at once
    writing      the same, while a file of a table is being written
    worker       one worker; the run goes on by itself
    driver       the driver alone; its workers lose whom they work for
    stalled      the driver, while its workers hang; they wake up when the next one is at work

Then the tables of both runs are compared: schemas, rows in their order, and the bytes of every
column. Every file has to match its record, and no file may be left that has none. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from kills_runs import Driver, done_numbers, unvouched
from kills_tables import digests, problems

from normlens.corpus import Run
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Manifest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
#: Kinds of kills, in the shares in which they come.
KINDS = ("all", "writing", "worker", "all", "driver", "writing", "all", "worker", "stalled")
#: Seconds between two looks at a run.
LOOK = 0.2


@dataclass(frozen=True)
class Kill:
    """A kill and what it left."""

    kind: str
    done: int  # blocks that are recorded afterwards
    unfinished: int  # of the blocks that the driver last said it had handed out
    files: int  # that no record vouches for
    seconds: float  # since this driver was started


# Kills --------------------------------------------------------------------------------------------


def killed_run(out: Path, options: argparse.Namespace, blocks: int) -> list[Kill]:
    """Run to the end in spite of all kills."""
    chance = random.Random(options.seed)
    moments = sorted(chance.randint(0, blocks * 19 // 20) for _ in range(options.kills))
    kinds = [KINDS[number % len(KINDS)] for number in range(options.kills)]
    chance.shuffle(kinds)
    kills: list[Kill] = []
    driver = Driver(out, options)
    orphans: list[int] = []
    try:
        for kind, moment in zip(kinds, moments, strict=True):
            wait_for(driver, kind, moment, chance.uniform(0, options.delay), orphans)
            if driver.ended:
                driver.finish()
                raise SystemExit(
                    f"the run was complete after {len(kills)} kills; give it more blocks"
                )
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
    finally:
        wake(orphans)
        driver.stop()
    return kills


def wait_for(driver: Driver, kind: str, moment: int, delay: float, orphans: list[int]) -> None:
    """Wait until so many blocks are done, a while longer, and for what is to be killed.

    Workers that hang wake up as soon as the driver has done a block.
    """
    begun = len(done_numbers(driver.out))
    while not driver.ended and (done := len(done_numbers(driver.out))) < moment:
        if done > begun:
            wake(orphans)
        time.sleep(LOOK)
    time.sleep(delay)
    while not driver.ended and not is_ready(driver, kind):
        time.sleep(0.0005 if kind == "writing" else LOOK)


def is_ready(driver: Driver, kind: str) -> bool:
    """Whether what is to be killed is there: a worker at work, a file that is being written."""
    if kind == "writing":
        return driver.is_writing
    return kind not in ("worker", "stalled") or driver.is_at_work


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


# Report -------------------------------------------------------------------------------------------


def report(kills: list[Kill], run: Run, rows: dict[str, tuple[int, str]], wrong: list[str]) -> str:
    """The kills and the comparison as Markdown."""
    blocks, files = run.manifest.blocks, run.check().files
    lines = [
        f"{run.manifest.sequences:,} sequences, {blocks} blocks; {len(kills)} kills, "
        f"{sum(kill.kind != 'worker' for kill in kills)} resumes; {files} files at the end.",
        "",
        "| | killed | blocks done | last said to be in flight, not done | files without a record |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {number} | {kill.kind} | {kill.done} | {kill.unfinished} | {kill.files} |"
        for number, kill in enumerate(kills, 1)
    ]
    lines += ["", "| table | rows | SHA-256 of schema and columns |", "|---|---|---|"]
    lines += [f"| `{name}` | {count:,} | {sha[:16]}… |" for name, (count, sha) in rows.items()]
    verdict = "all tables are bit-equal, and every file has its record" if not wrong else ""
    lines += ["", verdict or str(wrong)]
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
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--device", default="auto", help="cpu, or cuda: all workers share it")
    parser.add_argument("--batch-size", default="16", help="or auto; 16 is fast on a CPU")
    parser.add_argument("--file-size", type=float, default=4, help="MB: small, so many files")
    parser.add_argument("--file-minutes", type=float, default=1)
    parser.add_argument("--together", action="store_true", help="both runs at the same time")
    parser.add_argument("--folder", type=Path, help="keep both runs here; default: nowhere")
    options = parser.parse_args()
    place = options.folder or Path(tempfile.mkdtemp())
    place.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    alone = Driver(place / "reference", options)
    try:
        if not options.together:
            alone.finish()
        while not alone.ended and not (alone.out / MANIFEST).exists():
            time.sleep(LOOK)
        blocks = Manifest.load(LocalFolder(alone.out)).blocks
        kills = killed_run(place / "killed", options, blocks)
        alone.finish()
        expected, killed = Run.open(place / "reference"), Run.open(place / "killed")
        with ThreadPoolExecutor() as threads:
            rows, others = threads.map(digests, (expected, killed))
        wrong = [f"{name}: other bits" for name in rows if rows[name] != others[name]]
        wrong += [f"{name}: one run has it" for name in rows.keys() ^ others.keys()]
        wrong += problems(place / "killed", expected.manifest.sequences)
        told = {"kills": [asdict(kill) for kill in kills], "tables": rows, "wrong": wrong}
        (place / "kills.json").write_text(json.dumps(told, indent=1) + "\n")
        print(report(kills, killed, rows, wrong))
    finally:
        alone.stop()
        if options.folder is None:
            shutil.rmtree(place, ignore_errors=True)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
