"""Two processes at one run in an object store at once: one goes on, the other one says so.

    python benchmarks/double_starts.py [tries]            # needs: pip install 'moto[server]' s3fs
    python benchmarks/double_starts.py 5 --refuse 0.05 --lose 0.05

On an S3 server of this machine, each try

    starts      `normlens run` twice with the same --out, at nearly the same moment
    takes over  starts a run, resumes it from a second process while the first is stopped (SIGSTOP)
                or goes on, and lets it wake up before or after the second has ended

At least one process must end with 0, the others with one line; the tables must be those of a run by
itself, and the next resume must leave no stray file. `--refuse`, `--lose` and `--hang` are the
shares of requests that get a 503, that are done but get no response, and that are done after the
client has given up.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

from corpus import make_model

import normlens
from normlens.corpus import Run

PORT = "5017"
SERVER = f"http://127.0.0.1:{PORT}"
#: Processes are forked from one that has imported everything, which takes most of a start's time.
CONTEXT = multiprocessing.get_context("forkserver")


class Driver:
    """A process that does a run, or goes on with one, and ends as the command line would."""

    def __init__(self, given: dict[str, Any], folder: Path):
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".said", delete=False) as said:
            self._said = Path(said.name)
        self.process = CONTEXT.Process(target=drive, args=(given, str(self._said)))
        self.process.start()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid or 0, number)

    def ended(self) -> tuple[int | None, str]:
        """Wait for its end: its exit status, and the last line that it said."""
        self.process.join()
        return self.process.exitcode, "".join(self._said.read_text().splitlines()[-1:])


def drive(given: dict[str, Any], said: str) -> None:
    with open(said, "w") as lines:
        os.dup2(lines.fileno(), 2)
    try:
        (normlens.run if "model" in given else normlens.resume)(**given)
    except normlens.NormLensError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def apart(function: Any, *arguments: Any) -> Any:
    """Call a function in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        return pool.submit(function, *arguments).result()


def tables(url: str) -> str:
    """Every table of a run that passes its check but for strays, as text."""
    try:
        run = Run.open(url)
        wrong = [each for each in run.check().problems if not each.what.startswith("stray")]
        if wrong or not run.status().complete:
            return f"broken: {wrong[:1] or 'not complete'}"
        texts = []
        for name in sorted(run.tables):
            table = run.table(name)
            texts.append(f"{name} {table.sort_values(list(table.columns)).to_csv(index=False)}")
    except normlens.NormLensError as error:
        return f"broken: {error}"
    return "\n".join(texts)


def complaint(url: str) -> str:
    """What the next resume, and a check after it, have to complain about."""
    try:
        normlens.resume(url)
        problems = Run.open(url).check().problems
    except normlens.NormLensError as error:
        return f"the next resume: {error}"
    return f"the check: {problems[0]}" if problems else ""


def difference(there: str, expected: str) -> str:
    """The first lines that are not the same."""
    pairs = zip_longest(there.splitlines(), expected.splitlines())
    return str([pair for pair in pairs if pair[0] != pair[1]][:2])[:300]


def both_start(
    start: dict[str, Any], url: str, chance: random.Random, folder: Path
) -> list[Driver]:
    first = Driver(start | {"out": url}, folder)
    time.sleep(chance.random() * 0.3)
    return [first, Driver(start | {"out": url}, folder)]


def taken_over(
    start: dict[str, Any], url: str, chance: random.Random, folder: Path
) -> list[Driver]:
    """One that is stopped after some records, and another that resumes its run."""
    import s3fs

    first = Driver(start | {"out": url}, folder)
    wanted, store = chance.randint(1, 8), s3fs.S3FileSystem(use_listings_cache=False)
    while first.process.is_alive() and len(store.find(f"{url}/records")) < wanted:
        time.sleep(0.05)
    stays_alive, wakes_late = chance.random() < 0.3, chance.random() < 0.5
    if not stays_alive:
        first.signal(signal.SIGSTOP)
    second = Driver({"out": url, "file_size": 0}, folder)
    if wakes_late:
        second.process.join()
    else:
        time.sleep(chance.uniform(0, 5))
    first.signal(signal.SIGCONT)
    return [first, second]


def set_faults(**shares: float) -> None:
    request = urllib.request.Request(f"{SERVER}/_faults", json.dumps(shares).encode())
    urllib.request.urlopen(request).close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tries", type=int, nargs="?", default=10)
    parser.add_argument("--refuse", type=float, default=0.0)
    parser.add_argument("--lose", type=float, default=0.0)
    parser.add_argument("--hang", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "a",
        "AWS_ENDPOINT_URL": SERVER,
        "AWS_DEFAULT_REGION": "us-east-1",
        # The server hangs for three seconds, and does what it was asked for after them.
        "FSSPEC_S3": json.dumps({"config_kwargs": {"read_timeout": 1 if given.hang else 60}}),
    }
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("s3_server.py")), PORT],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    CONTEXT.set_forkserver_preload(["__main__", "normlens.corpus.runs.runs", "s3fs", "duckdb"])
    try:
        with tempfile.TemporaryDirectory() as folder:
            wrong = compare(Path(folder), given)
    finally:
        server.kill()
    if wrong:
        raise SystemExit(1)


def wait_for_server() -> None:
    for _ in range(120):
        try:
            set_faults()
            return
        except OSError:
            time.sleep(1)
    raise SystemExit("the server did not start")


def compare(folder: Path, given: argparse.Namespace) -> int:
    import s3fs

    wait_for_server()
    s3fs.S3FileSystem().mkdir("runs")
    make_model(folder / "model")
    lines = [f"w{n % 7} w{n % 5} w{n % 3}" for n in range(96)]
    (folder / "data.txt").write_text("\n".join(lines) + "\n")
    start = {"measures": "mixing,similarity", "block_size": 4, "file_size": 0}
    start |= {"model": str(folder / "model"), "data": str(folder / "data.txt")}
    Driver(start | {"out": "s3://runs/alone"}, folder).ended()
    expected = apart(tables, "s3://runs/alone")
    assert not expected.startswith("broken"), expected
    set_faults(refuse=given.refuse, lose=given.lose, hang=given.hang)
    wrong, won, refused = 0, 0, 0
    for number in range(2 * given.tries):
        kind = (both_start, taken_over)[number % 2]
        url, chance = f"s3://runs/{kind.__name__}-{number}", random.Random(given.seed + number)
        ends = [driver.ended() for driver in kind(start, url, chance, folder)]
        codes = [code for code, _ in ends]
        won += codes.count(0)
        refused += codes.count(2)
        there = apart(tables, url)
        found = "" if there == expected else f"other tables: {difference(there, expected)}"
        found = found or ("" if 0 in codes else "none has finished") or apart(complaint, url)
        wrong += bool(found)
        print(f"{kind.__name__} {number // 2}: exit {codes}; {ends} {found}", flush=True)
    print(f"{given.tries} tries of each kind, {won} finished, {refused} refused")
    print(f"{wrong} wrong")
    return wrong


if __name__ == "__main__":
    main()
