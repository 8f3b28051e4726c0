"""What a run of up to ten million sequences costs its driver, with maps that cost nothing.

The run is a real one: its data is a file that is read, its engine hands shards to a hundred workers
and takes in what they finish, its log, its compaction and its folder are those of any run. Only the
workers are threads of this process that write made-up tables instead of computing maps. They share
the processor with the driver, so that the run takes longer than its driver; CPU times are those of
the driver's own threads.

    driver      the thread that hands out shards and commits them, milliseconds of CPU per shard
    compaction  the thread that joins files, the same
    memory      resident MiB of the whole process, at a tenth of the run and at its end
    requests    to an object store, per shard; compaction's and the rest
    status, query, resume
                seconds of CPU in a process of its own, after its imports: the state of the finished
                run, an aggregate of it (norms_dimensions), and resuming it, which finds it finished

    python benchmarks/scale.py                               # all, which takes an hour or so
    python benchmarks/scale.py --sequences 10000,100000      # some
    python benchmarks/scale.py --docs                        # and writes them to the docs
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from normlens.corpus import Run, resume, run
from normlens.corpus.engines.attempts import Attempts
from normlens.corpus.engines.base import Engine
from normlens.corpus.engines.crew import Answered, Crew, Event, Joined
from normlens.corpus.engines.dispatch import opened
from normlens.corpus.engines.jobs import Call
from normlens.corpus.engines.shard_files import parquet, write_tables
from normlens.corpus.engines.shard_rows import FAILURES, SEQUENCES
from normlens.corpus.engines.worker import Task
from normlens.corpus.measures.columns import build
from normlens.corpus.measures.norms_rows import TABLES
from normlens.corpus.runs import background_compaction, identity, runs
from normlens.corpus.runs.folder import open_folder
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.shards import Done, Shard

sys.path.insert(0, str(Path(__file__).parent))
from object_store import CountingStore

DOCS = Path(__file__).resolve().parents[1] / "docs"
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
LAYERS, WIDTH = 2, 16
AGGREGATE = (
    "SELECT layer, sum(sum_output_abs) / sum(count) AS mean FROM norms_dimensions GROUP BY 1"
)
ASKED = ("status", "query", "resume")


# Workers whose maps cost nothing ------------------------------------------------------------------


class StandIn:
    """Makes the tables of a shard out of nothing, and writes them as a worker does."""

    def __init__(self, task: Task):
        self.folder = open_folder(task.folder)
        versions = identity.software()
        self.identity = {
            "name": task.options.model, "revision": None, "weights": "none", "config": "none",
            "tokenizer": "none", "device": "cpu", "dtype": "float32",
        }  # fmt: skip
        self.by = {"host": "here", "model": identity.digest(self.identity), "versions": versions}
        layers, dimensions = np.divmod(np.arange(LAYERS * WIDTH), WIDTH)
        sums = {
            "sequences": 64,
            "count": 640,
            "sum_input_abs": 0.5 + dimensions,
            "sum_output_abs": 1.5 + dimensions,
            "gamma": 1.0,
            "special": dimensions == 3,
        }
        # The same in every shard, so they are encoded once.
        self.constant = {
            "failures": parquet(FAILURES.empty_table()),
            "special_dimensions": parquet(TABLES["special_dimensions"].empty_table()),
            "norms_dimensions": parquet(
                build(
                    TABLES["norms_dimensions"], {"layer": layers, "dimension": dimensions, **sums}
                )
            ),
        }

    def compute(self, shard: Shard) -> Done:
        started, n = time.time(), len(shard.records)
        index = np.arange(shard.first, shard.first + n)
        names = pa.array([record.id for record in shard.records])
        whole, none = pa.array(np.full(n, 10, np.int32)), pa.nulls(n, pa.int32())
        columns = [index, names, whole, none, pa.array(np.zeros(n)), none, pa.nulls(n, pa.string())]
        norms = {
            "index": np.repeat(index, LAYERS),
            "sequence": names.take(pa.array(np.repeat(np.arange(n), LAYERS))),
            "layer": np.tile(np.arange(LAYERS), n),
            "ff_output_norm": np.repeat(index * 0.1, LAYERS),
            "bypassed_norm": np.repeat(index * 0.3, LAYERS),
        }
        tables = {
            "sequences": parquet(
                pa.Table.from_arrays(list(map(pa.array, columns)), schema=SEQUENCES)
            ),
            "norms": parquet(build(TABLES["norms"], norms)),
            **self.constant,
        }
        return Done(
            number=shard.number,
            epoch=shard.epoch,
            attempt=shard.attempt,
            sequences=n,
            failures=0,
            tokens=10 * n,
            started=started,
            finished=time.time(),
            seconds={"reading": shard.seconds},
            tables=write_tables(self.folder, shard, tables),
            by=self.by,
        )


class Threads(Crew):
    """Workers that are threads of this process."""

    def __init__(self, task: Task, workers: int):
        self._size = workers
        self.stand_in = StandIn(task)
        self._pool = ThreadPoolExecutor(workers)
        self._events: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._workers, self._calls = count(), count()

    @property
    def wanted(self) -> int:
        return self._size

    def hire(self) -> int:
        worker = next(self._workers)
        self._events.put(Joined(worker, self.stand_in.identity, self.stand_in.by))
        return worker

    def ask(self, worker: int, call: Call) -> int:
        number = next(self._calls)
        self._pool.submit(self._answer, worker, number, call)
        return number

    def _answer(self, worker: int, number: int, call: Call) -> None:
        try:
            answer = getattr(self.stand_in, call.method)(*call.arguments)
            self._events.put(Answered(worker, number, answer))
        except BaseException as error:
            self._events.put(error)

    def events(self) -> list[Event]:
        waiting = [self._events.get()]
        while not self._events.empty():
            waiting.append(self._events.get())
        for event in waiting:
            if isinstance(event, BaseException):
                raise event
        return waiting  # type: ignore[return-value]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class SimulatedEngine(Engine):
    """The dispatcher of every engine with several workers, and a crew that costs nothing."""

    def __init__(self, task: Task, workers: int):
        self.crew = Threads(task, workers)
        self._dispatcher, self.identity, self.by = opened(self.crew, 3)

    def compute(self, shards: Any, attempts: Attempts | None = None) -> Any:
        return self._dispatcher.compute(shards, attempts or Attempts())

    def has_result(self) -> bool:
        return bool(self._dispatcher.results)

    def close(self) -> None:
        self.crew.close()


def simulate(workers: int) -> None:
    """From now on, engines of this process are simulated."""
    runs.open_engine = lambda task, *_: SimulatedEngine(task, workers)  # type: ignore[assignment]


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
    """MiB of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def timed_compaction() -> list[float]:
    """Make the thread that compacts tell its CPU time at its end."""
    spent: list[float] = []
    work = background_compaction.BackgroundCompaction._work

    def timed(self: Any) -> None:
        work(self)
        spent.append(time.thread_time())

    background_compaction.BackgroundCompaction._work = timed  # type: ignore[method-assign]
    return spent


def measure_run(sequences: int, workers: int, out: str, corpus: Path) -> dict[str, Any]:
    """Run the simulation in this process."""
    simulate(workers)
    compaction, watching = timed_compaction(), Watching()
    begin, reading = time.perf_counter(), time.thread_time()
    done = run("a-stand-in", corpus, out, measures="norms", workers=workers, progress=watching)
    driver = time.thread_time() - watching.cpu
    shards = done.manifest.shards
    assert done.status().complete
    names = open_folder(out).names()
    kinds = Counter(name.partition("/")[0] for name in names)
    return {
        "sequences": sequences,
        "shards": shards,
        "tables": len(done.tables),
        "wall": time.perf_counter() - begin,
        "reading": watching.cpu - reading,
        "driver": 1e3 * driver / shards,
        "compaction": 1e3 * sum(compaction) / shards,
        "memory": watching.memory,
        "files": len(names),
        "kinds": dict(kinds),
    }


def ask(what: str, out: str, corpus: Path, workers: int) -> dict[str, Any]:
    """Ask something of the finished run, in this process, which has imported what it needs."""
    import duckdb  # noqa: F401

    from normlens.corpus.measures import registry  # noqa: F401

    simulate(workers)
    wall, cpu = time.perf_counter(), time.process_time()
    if what == "status":
        answer: Any = Run.open(out).status().done
    elif what == "query":
        answer = Run.open(out).sql(AGGREGATE)["mean"].sum()
    else:
        answer = resume(out, workers=workers).status().complete
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
        result[what] = called("--ask", what, "--sequences", *common, "--corpus", str(corpus))
    expected = {"status": sequences, "resume": 1}
    for what, answer in expected.items():
        assert result[what]["answer"] == answer, (what, result[what])
    # Σ over the dimensions of what every shard adds, over the tokens of each dimension.
    sums = sum(LAYERS * [sum(1.5 + d for d in range(WIDTH)) / (640 * WIDTH)])
    assert abs(result["query"]["answer"] - sums) < 1e-12
    return result


def called(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


# Report -------------------------------------------------------------------------------------------


def report(results: dict[str, list[dict[str, Any]]], workers: int) -> str:
    """The tables as Markdown."""
    lines = [
        f"{workers} simulated workers, shards of 64 sequences, "
        f"{next(iter(results.values()))[0]['tables']} tables. CPU times of the driver's own "
        "threads; other processes use the same two cores, so wall-clock times say little.",
    ]
    titles = {"local": "A local disk", "objects": "An object store"}
    for store, rows in results.items():
        heads = [
            f"{titles[store]}: sequences",
            "shards",
            "driver, ms CPU per shard",
            "compaction, ms CPU per shard",
            "MiB at a tenth, at the end",
            *(f"`{what}`, s CPU" for what in ASKED),
            "files at the end",
        ]
        if store == "objects":
            heads.append("requests per shard: run, compaction")
        lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for row in rows:
            seconds = " | ".join(f"{row[what]['seconds']:.2f}" for what in ASKED)
            line = (
                f"| {row['sequences']:,} | {row['shards']:,} | {row['driver']:.2f} "
                f"| {row['compaction']:.2f} | {row['memory'][0]:.0f}, {row['memory'][-1]:.0f} "
                f"| {seconds} | {row['files']} |"
            )
            if store == "objects":
                asked = row["requests"]
                line += f" {asked['run']:.2f}, {asked['compaction']:.2f} |"
            lines.append(line)
    return "\n".join(lines)


def write_docs(results: dict[str, list[dict[str, Any]]], workers: int) -> None:
    plot(results, DOCS / "images" / "scale.svg")
    page = DOCS / "corpus.md"
    text = f"{report(results, workers)}\n\n![How each grows](images/scale.svg)"
    pattern = r"(<!-- scale:.*?-->\n).*?(<!-- /scale -->)"
    page.write_text(
        re.sub(pattern, lambda m: f"{m[1]}\n{text}\n\n{m[2]}", page.read_text(), flags=re.S)
    )


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).ravel()
    drawn = {
        "driver (ms CPU per shard)": lambda row: row["driver"],
        "compaction (ms CPU per shard)": lambda row: row["compaction"],
        "memory at the end (MiB)": lambda row: row["memory"][-1],
        "files at the end": lambda row: row["files"],
        "status, query, resume (s CPU)": None,
        "requests per shard": lambda row: row["requests"]["run"],
    }
    styles = {"local": "o-", "objects": "s--"}
    for axis, (title, value) in zip(axes, drawn.items(), strict=True):
        for store, rows in results.items():
            sizes = [row["sequences"] for row in rows]
            if value is None:
                for what in ASKED:
                    seconds = [row[what]["seconds"] for row in rows]
                    axis.plot(sizes, seconds, styles[store], label=f"{what}, {store}")
                axis.axhline(10, color="grey", linewidth=0.8)
            elif "requests" not in title or store == "objects":
                axis.plot(sizes, [value(row) for row in rows], styles[store], label=store)
        axis.set(title=title, xlabel="sequences", xscale="log", ylim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize="x-small")
    figure.savefig(path)


# The command --------------------------------------------------------------------------------------


def opened_place(given: argparse.Namespace) -> str:
    """The run's folder or URL, where a child process finds it again."""
    if given.store == "local":
        return str(given.scratch / "run")
    return f"{CountingStore.at(given.scratch)}/run"


def requests_of(shards: int) -> dict[str, Any]:
    """Requests per shard: those of reading and replacing what workers wrote, and all others."""
    asked = CountingStore.requests
    replacing = ("GET shards", "GET tables", "PUT tables", "DELETE shards", "DELETE tables")
    compaction = sum(asked[kind] for kind in replacing)
    return {
        "run": (sum(asked.values()) - compaction) / shards,
        "compaction": compaction / shards,
        "kinds": dict(asked),
    }


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
            result["requests"] = requests_of(result["shards"])
        print(json.dumps(result))
        return
    if given.ask:
        print(json.dumps(ask(given.ask, opened_place(given), given.corpus, given.workers)))
        return
    results: dict[str, list[dict[str, Any]]] = {}
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
