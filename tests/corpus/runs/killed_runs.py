"""A script that runs a corpus and kills it again and again; what it did goes to stdout as JSON.

torch is imported once, here; each attempt is a forked child. Half of the attempts are killed at a
random moment, half at a random system call that writes, one half of those after half a write.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import Any

import torch

import normlens
from normlens.corpus import resume, run
from normlens.corpus.runs import folder as folders
from normlens.corpus.runs.manifest import NAME as MANIFEST


class KillingOs:
    """`os`, except that the process ends at its n-th call that changes the disk."""

    CALLS = ("open", "write", "fsync", "replace", "link", "unlink")

    def __init__(self, last: int, torn: bool):
        self.left, self.torn = last, torn

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.CALLS:
            return real

        def call(*args: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                if name == "write" and self.torn:
                    os.write(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        return call


def attempt(out: str, model: str, data: str, options: dict[str, Any]) -> None:
    if os.path.exists(os.path.join(out, MANIFEST)):
        resume(out)
    else:
        run(model, data, out, device="cpu", **options)


def main() -> None:
    out, model, data, kills, seed = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
    options = json.loads(sys.argv[6])
    torch.set_num_threads(1)
    normlens.load(model, device="cpu")  # imports what loading needs, once
    from normlens.corpus.engines import worker  # noqa: F401

    chance = random.Random(seed)
    killed, errors, finished = 0, 0, False
    while not finished:
        at_call, wait = chance.random() < 0.5, chance.uniform(0.02, 0.8)
        last, torn = chance.randint(1, 160), chance.random() < 0.5
        if not killed:  # however fast the machine is, the first attempt does not get far
            at_call, last = True, chance.randint(1, 20)
        spare = killed >= kills
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if at_call and not spare:
                    folders.os = KillingOs(last, torn)  # type: ignore[attr-defined]
                attempt(out, model, data, options)
                status = 0
            finally:
                os._exit(status)
        if not at_call and not spare:
            time.sleep(wait)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status) == 0:
            finished = True
        else:
            errors += 1
            finished = errors > 3
    print(json.dumps({"killed": killed, "errors": errors}))


if __name__ == "__main__":
    main()
