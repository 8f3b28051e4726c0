"""What a run of up to ten million sequences costs its driver, with maps that cost nothing.

The run is a real one: its data is a file that is read, its pool hands blocks to a hundred workers
and takes in what they finish, its records and its folder are those of any run. Only the workers are
simulated: they live in other processes, and write made-up tables instead of computing maps.
They and the driver share the processor; CPU times are those of the driver's own threads, and memory
is that of the driver's process.

    driver      the thread that hands out blocks and commits files, milliseconds of CPU per block
    memory      resident MiB of the driver at a tenth of the run and at its end, and its peak
    requests    to an object store, per 1,000 sequences
    status, query, resume
                seconds of CPU in a process of its own, after its imports: the state of the finished
                run, an aggregate of it (norms_dimensions), and resuming it, which finds it finished

    python benchmarks/scale.py                               # all, which takes an hour or so
    python benchmarks/scale.py --sequences 10000,100000      # some
    python benchmarks/scale.py --scratch /dev/shm            # where nothing waits for a disk
    python benchmarks/scale.py --docs                        # and writes them to the docs
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from object_store import CountingStore
from scale_report import ASKED, Results, report, write_docs
from scale_workers import LAYERS, WIDTH, simulate

from normlens.corpus import Run, resume, run
from normlens.corpus.runs.folder import open_folder
from normlens.corpus.runs.progress import Progress

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
AGGREGATE = (
    "SELECT layer, sum(sum_output_abs) / sum(count) AS mean FROM norms_dimensions GROUP BY 1"
)

# Measuring a run ----------------------------------------------------------------------------------


class Watching(Progress):
    """Notes the driver's CPU time and the memory of the process as the run goes on."""

    def __init__(self) -> None:
        self.memory: list[float] = []
        self.began = self.total = self.done = 0

    def start(self, total: int, done: int) -> None:
        self.total, self.done = total, done
        self.cpu = time.thread_time()

    def advance(self, sequences: int, failures: int) -> None:
        self.done += sequences
        if self.done >= self.total * (len(self.memory) + 1) / 10:
            self.memory.append(resident())

    def say(self, text: str) -> None:
        print(text, file=sys.stderr)


def resident() -> float:
    """MiB of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def peak() -> float:
    """MiB of this process that were in memory at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_run(sequences: int, workers: int, out: str, corpus: Path) -> dict[str, Any]:
    """Run the simulation with this process as its driver."""
    watching = Watching()
    begin, reading = time.perf_counter(), time.thread_time()
    done = run("a-stand-in", corpus, out, measures="norms", workers=workers, progress=watching)
    driver = time.thread_time() - watching.cpu
    blocks = done.manifest.blocks
    assert done.status().complete
    names = open_folder(out).names()
    kinds = Counter(name.partition("/")[0] for name in names)
    return {
        "sequences": sequences,
        "blocks": blocks,
        "tables": len(done.tables),
        "wall": time.perf_counter() - begin,
        "reading": watching.cpu - reading,
        "driver": 1e3 * driver / blocks,
        "memory": watching.memory,
        "peak": peak(),
        "files": len(names),
        "kinds": dict(kinds),
    }


def ask(what: str, out: str, workers: int) -> dict[str, Any]:
    """Ask something of the finished run, in this process, which has imported what it needs."""
    import duckdb  # noqa: F401

    import normlens.corpus.measures  # noqa: F401

    wall, cpu = time.perf_counter(), time.process_time()
    if what == "status":
        answer: Any = Run.open(out).status().done
    elif what == "query":
        answer = Run.open(out).sql(AGGREGATE)["mean"].sum()
    else:
        answer = resume(out, model="a-stand-in", workers=workers).status().complete
    return {
        "seconds": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "answer": float(answer),
    }


def measure(sequences: int, store: str, workers: int, scratch: Path) -> dict[str, Any]:
    """Run and ask, each in a process of its own."""
    corpus = scratch / f"{sequences}.txt"
    if not corpus.exists():
        with corpus.open("w") as lines:
            lines.writelines(f"line {number}\n" for number in range(sequences))
    place = scratch / f"{store}-{sequences}"
    place.mkdir()
    common = [str(sequences), "--store", store, "--workers", str(workers), "--scratch", str(place)]
    result = called("--run", *common, "--corpus", str(corpus))
    for what in ASKED:
        result[what] = called("--ask", what, "--sequences", *common)
    expected = {"status": sequences, "resume": 1}
    for what, answer in expected.items():
        assert result[what]["answer"] == answer, (what, result[what])
    # Σ over the dimensions of what every block adds, over the tokens of each dimension.
    sums = sum(LAYERS * [sum(1.5 + d for d in range(WIDTH)) / (640 * WIDTH)])
    assert abs(result["query"]["answer"] - sums) < 1e-12
    return result


def called(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


# The command --------------------------------------------------------------------------------------


def opened_place(given: argparse.Namespace) -> str:
    """The run's folder or URL, where a child process finds it again, with simulated workers."""
    local = given.store == "local"
    simulate(given.workers, None if local else given.scratch)
    return str(given.scratch / "run") if local else f"{CountingStore.at(given.scratch)}/run"


def requests_of(sequences: int) -> dict[str, Any]:
    """Requests per thousand sequences, and of which kinds they were."""
    asked = CountingStore.requests
    return {"run": 1e3 * sum(asked.values()) / sequences, "kinds": dict(asked)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", default=",".join(map(str, SIZES)))
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--store", choices=("local", "objects", "both"), default="both")
    parser.add_argument("--scratch", type=Path, help="where runs lie; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="a JSON file of results, which grows")
    parser.add_argument("--docs", action="store_true", help="update docs/corpus.md")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ask", choices=ASKED, help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        place = opened_place(given)
        result = measure_run(given.run, given.workers, place, given.corpus)
        if given.store == "objects":
            result["requests"] = requests_of(given.run)
        print(json.dumps(result))
        return
    if given.ask:
        print(json.dumps(ask(given.ask, opened_place(given), given.workers)))
        return
    results: Results = {}
    if given.out and given.out.exists():
        results = json.loads(given.out.read_text())
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        stores = ("local", "objects") if given.store == "both" else (given.store,)
        for sequences in map(int, filter(None, given.sequences.split(","))):
            for store in stores:
                rows = results.setdefault(store, [])
                rows[:] = [row for row in rows if row["sequences"] != sequences]
                rows.append(measure(sequences, store, given.workers, Path(scratch)))
                rows.sort(key=lambda row: row["sequences"])
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                if given.out:
                    given.out.write_text(json.dumps(results, indent=1) + "\n")
    print(report(results, given.workers))
    if given.docs:
        write_docs(results, given.workers)


if __name__ == "__main__":
    main()
