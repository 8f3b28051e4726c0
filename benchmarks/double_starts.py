"""Two processes that start one run in an object store at once: one goes on, the other one says so.

    python benchmarks/double_starts.py [tries]     # needs: pip install 'moto[server]' s3fs

Each try starts `normlens run` twice with the same --out, on an S3 server of this machine. At least
one must end with 0, the others with one line; the tables must be those of a run by itself.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from corpus import make_model

PORT = "5017"
RUN = [sys.executable, "-m", "normlens", "run", "--measures", "mixing,similarity"]
LISTED = """
import sys, normlens.corpus
run = normlens.corpus.Run.open(sys.argv[1])
assert not run.check().problems, run.check().problems
for name in sorted(run.tables):
    table = run.table(name)
    print(name, table.sort_values(list(table.columns)).to_csv(index=False))
"""


def tables(url: str) -> str:
    """Every table of a run that passes its check, as text."""
    command = [sys.executable, "-c", LISTED, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"broken: {done.stderr[-300:]}"


def main() -> None:
    tries = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "a",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("s3_server.py")), PORT],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), tries)
    finally:
        server.kill()


def compare(folder: Path, tries: int) -> None:
    import s3fs

    time.sleep(5)
    s3fs.S3FileSystem().mkdir("runs")
    make_model(folder / "model")
    lines = [f"w{n % 7} w{n % 5} w{n % 3}" for n in range(96)]
    (folder / "data.txt").write_text("\n".join(lines) + "\n")
    start = [*RUN, "--model", str(folder / "model"), "--data", str(folder / "data.txt")]
    start += ["--shard-size", "4", "--out"]
    subprocess.run([*start, "s3://runs/alone"], check=True, capture_output=True)
    expected = tables("s3://runs/alone")
    assert not expected.startswith("broken"), expected
    won, refused, wrong = 0, 0, 0
    for number in range(tries):
        out = f"s3://runs/{number}"
        both = []
        for _ in range(2):
            both.append(subprocess.Popen([*start, out], stderr=subprocess.PIPE, text=True))
            time.sleep(random.Random(number).random() * 0.3)
        said = [process.communicate()[1].strip().splitlines()[-1:] for process in both]
        codes = [process.returncode for process in both]
        won += codes.count(0)
        refused += sum(code == 2 for code in codes)
        is_wrong = 0 not in codes or tables(out) != expected
        wrong += is_wrong
        print(f"try {number}: exit {codes}{', WRONG' if is_wrong else ''}; {said}", flush=True)
    print(f"{tries} double starts: {won} finished, {refused} refused, {wrong} wrong")


if __name__ == "__main__":
    main()
