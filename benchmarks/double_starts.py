"""Two processes at one run in an object store at once: one goes on, the other one says so.

    python benchmarks/double_starts.py [tries]            # needs: pip install 'moto[server]' s3fs
    python benchmarks/double_starts.py 5 --refuse 0.05 --lose 0.05

On an S3 server of this machine, each try

    starts      `normlens run` twice with the same --out, at nearly the same moment
    takes over  starts a run, resumes it from a second process while the first is stopped (SIGSTOP)
                or goes on, and lets it wake up before or after the second has ended

At least one process must end with 0, the others with one line; the tables must be those of a run by
itself, and the next resume must leave no stray file. `--refuse` and `--lose` are the shares of
requests that get a 503, and that are done but get no response.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import zip_longest
from pathlib import Path
from typing import Any

from corpus import make_model
from kills_runs import command

PORT = "5017"
SERVER = f"http://127.0.0.1:{PORT}"
NORMLENS = [sys.executable, "-m", "normlens"]
LISTED = """
import sys, normlens.corpus
run = normlens.corpus.Run.open(sys.argv[1])
wrong = [problem for problem in run.check().problems if not problem.what.startswith("stray")]
assert run.status().complete and not wrong, wrong
for name in sorted(run.tables):
    table = run.table(name)
    print(name, table.sort_values(list(table.columns)).to_csv(index=False))
"""


def tables(url: str) -> str:
    """Every table of a run that passes its check but for strays, as text."""
    listing = [sys.executable, "-c", LISTED, url]
    done = subprocess.run(listing, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"broken: {done.stderr[-300:]}"


def complaint(url: str) -> str:
    """What the next resume, and a check after it, have to complain about."""
    for words in (["run", "--resume", url, "--quiet"], ["check", url]):
        done = subprocess.run([*NORMLENS, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{words[0]} ends with {done.returncode}: {done.stdout}{done.stderr}"[-400:]
    return ""


def difference(there: str, expected: str) -> str:
    """The first lines that are not the same."""
    pairs = zip_longest(there.splitlines(), expected.splitlines())
    return str([pair for pair in pairs if pair[0] != pair[1]][:2])[:300]


def started(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def both_start(
    start: dict[str, Any], url: str, chance: random.Random
) -> list[subprocess.Popen[str]]:
    first = started(command(start | {"out": url}))
    time.sleep(chance.random() * 0.3)
    return [first, started(command(start | {"out": url}))]


def taken_over(
    start: dict[str, Any], url: str, chance: random.Random
) -> list[subprocess.Popen[str]]:
    """One that is stopped after some records, and another that resumes its run."""
    import s3fs

    first = started(command(start | {"out": url}))
    wanted, store = chance.randint(1, 8), s3fs.S3FileSystem(use_listings_cache=False)
    while first.poll() is None and len(store.find(f"{url}/records")) < wanted:
        time.sleep(0.05)
    stays_alive, wakes_late = chance.random() < 0.3, chance.random() < 0.5
    if not stays_alive:
        first.send_signal(signal.SIGSTOP)
    second = started(command({"out": url, "file_size": 0}))
    if wakes_late:
        second.wait()
    else:
        time.sleep(chance.uniform(0, 20))
    first.send_signal(signal.SIGCONT)
    return [first, second]


def set_faults(**shares: float) -> None:
    request = urllib.request.Request(f"{SERVER}/_faults", json.dumps(shares).encode())
    urllib.request.urlopen(request).close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tries", type=int, nargs="?", default=10)
    parser.add_argument("--refuse", type=float, default=0.0)
    parser.add_argument("--lose", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "a",
        "AWS_ENDPOINT_URL": SERVER,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("s3_server.py")), PORT],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
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
    alone = command(start | {"out": "s3://runs/alone"})
    subprocess.run(alone, check=True, capture_output=True)
    expected = tables("s3://runs/alone")
    assert not expected.startswith("broken"), expected
    set_faults(refuse=given.refuse, lose=given.lose)
    wrong = 0
    for kind in (both_start, taken_over):
        won, refused = 0, 0
        for number in range(given.tries):
            url, chance = f"s3://runs/{kind.__name__}-{number}", random.Random(given.seed + number)
            both = kind(start, url, chance)
            said: Any = [process.communicate()[1].strip().splitlines()[-1:] for process in both]
            codes = [process.returncode for process in both]
            won += codes.count(0)
            refused += codes.count(2)
            there = tables(url)
            found = "" if there == expected else f"other tables: {difference(there, expected)}"
            found = found or ("" if 0 in codes else "none has finished") or complaint(url)
            wrong += bool(found)
            print(f"{kind.__name__} {number}: exit {codes}; {said} {found}", flush=True)
        print(f"{kind.__name__}: {given.tries} tries, {won} finished, {refused} refused")
    print(f"{wrong} wrong")
    return wrong


if __name__ == "__main__":
    main()
