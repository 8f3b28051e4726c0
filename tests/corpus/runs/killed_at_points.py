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
from normlens.corpus.runs.folder import LocalFolder

#: method of the folder; what the name contains; at which such call; before it, or after
POINTS = [
    ("create", "manifest.json", 1, "before"),
    ("create", "manifest.json", 1, "after"),  # nobody has claimed the run
    ("create", "claims/1.json", 1, "after"),  # the claim has no base
    ("create", "claims/1.base.json", 1, "after"),
    ("write", "tables/norms/000001", 1, "before"),  # some tables are written, some are not
    ("create", "records/1-000001", 1, "before"),  # the first tables are written, its record is not
    ("create", "records/1-000002", 1, "half"),
    ("create", "records/1-000002", 1, "after"),
    ("create", "records/1-000011", 1, "after"),  # all is done, but nobody has looked at it
    ("remove", "heartbeat.json", 1, "before"),
]


def kill_at(method: str, contained: str, count: int, when: str) -> None:
    """Make this process end at a point of its writing."""
    real: Callable[..., Any] = getattr(LocalFolder, method)
    left = [count]

    def call(self: LocalFolder, name: str, *data: bytes) -> Any:
        left[0] -= contained in name
        if left[0] == 0 and when == "half":
            real(self, name, data[0][: len(data[0]) // 2])
        if left[0] == 0 and when != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(self, name, *data)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

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
