"""A script that compacts a run and kills it at every call that changes the disk, one by one.

    python tests/corpus/runs/killed_compactions.py RUN SCRATCH [EACH]   # at each EACH-th call

Each attempt is a forked child on a copy of the run. Another child then compares the tables, which
must be the same bits, compacts what is left, and compares them once more. How many calls there were
and what went wrong goes to stdout as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import duckdb  # noqa: F401
import pandas as pd
import pyarrow.parquet  # noqa: F401

import normlens.corpus.measures  # noqa: F401

# What children need is imported once, here.
from normlens.corpus import Run
from normlens.corpus.runs import folder as folders

CALLS = ("open", "write", "fsync", "replace", "unlink")


class KillingOs:
    """`os`, except that the process ends at its n-th call that changes the disk."""

    def __init__(self, last: int):
        self.left = last

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                if name == "write":  # half of it gets there
                    os.write(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        return call


def digests(run: Run) -> dict[str, str]:
    """A hash of the bits of every table."""
    made = {}
    for table in run.tables:
        frame = run.table(table)
        values = pd.util.hash_pandas_object(frame, index=True).to_numpy().tobytes()
        made[table] = hashlib.sha256(repr(list(frame.columns)).encode() + values).hexdigest()
    return made


def forked(work: Any, *arguments: Any) -> int:
    """The status of a child that does some work."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(*arguments)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def compact(out: Path, last: int) -> None:
    folders.os = KillingOs(last)  # type: ignore[attr-defined]
    Run.open(out).compact()


def compare(out: Path, expected: dict[str, str]) -> None:
    run = Run.open(out)
    assert digests(run) == expected, "other bits after a kill"
    run.compact()
    assert digests(run) == expected, "other bits after compacting the rest"
    check = run.check()
    assert check.sound, str(check)
    assert check.files == len(run.tables)


def main() -> None:
    source, scratch, *each = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
    step = each[0] if each else 1
    expected = scratch / "expected.json"
    assert forked(lambda: expected.write_text(json.dumps(digests(Run.open(source))))) == 0
    told = json.loads(expected.read_text())
    calls, failed = 0, []
    while True:
        calls += step
        out = scratch / "run"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(source, out)
        status = forked(compact, out, calls)
        if not os.WIFSIGNALED(status):
            break
        if forked(compare, out, told) != 0:
            failed.append(calls)
    if os.WEXITSTATUS(status) != 0:
        failed.append(0)
    print(json.dumps({"calls": calls, "failed": failed}))


if __name__ == "__main__":
    main()
