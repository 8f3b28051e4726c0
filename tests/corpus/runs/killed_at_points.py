"""A script that kills runs at chosen points of writing and resumes them; it prints JSON.

Every point has a folder of its own: `OUT-0`, `OUT-1`, … in the order of `POINTS`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
from killed_runs import attempt

import normlens
from normlens.corpus.runs import log
from normlens.corpus.runs.folder import LocalFolder

#: method of the folder; what the name contains; at which such call; before it, or after
POINTS = [
    ("write", "shards/norms/shard-000003", 1, "before"),  # some tables are written, some are not
    ("append", ".jsonl", 1, "before"),  # the first shard's tables are written, its entry is not
    ("append", ".jsonl", 2, "half"),
    ("append", ".jsonl", 2, "after"),
    ("write", ".fold", 1, "before"),
    ("write", ".fold", 1, "after"),  # the entries that it covers are still there
    ("remove_all", ".jsonl", 1, "after"),
    ("write", ".fold", 3, "before"),  # the first large one
    ("write", ".fold", 3, "after"),  # the folds that it covers are still there
    ("write", ".base", 1, "after"),  # there is a log and no manifest
    ("write", "manifest.json", 1, "after"),
]
#: As many entries as a fold holds, so that a short run has large ones.
FOLD = 3


def kill_at(method: str, contained: str, count: int, when: str) -> None:
    """Make this process end at a point of its writing."""
    real: Callable[..., None] = getattr(LocalFolder, method)
    left = [count]

    def call(self: LocalFolder, what: Any, *data: bytes) -> None:
        names = [what] if isinstance(what, str) else list(what)
        left[0] -= any(contained in name for name in names)
        if left[0] == 0 and when == "half":
            real(self, what, data[0][: len(data[0]) // 2])
        if left[0] == 0 and when != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, what, *data)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(LocalFolder, method, call)


def child(work: Callable[[], None]) -> int:
    """Do work in a forked process; return how it ended."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    out, model, data = sys.argv[1:4]
    options = json.loads(sys.argv[4])
    torch.set_num_threads(1)
    log.FOLD = FOLD
    normlens.load(model, device="cpu")  # imports what loading needs, once
    from normlens.corpus.engines import worker  # noqa: F401

    ended = []
    for number, point in enumerate(POINTS):
        place = f"{out}-{number}"

        def killed(place: str = place, point: tuple[str, str, int, str] = point) -> None:
            kill_at(*point)
            attempt(place, model, data, options)

        def resumed(place: str = place) -> None:
            attempt(place, model, data, options)

        ended.append([child(killed), child(resumed)])
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
