"""Processes that are forked from one that has imported torch and transformers.

A Python that starts anew needs seconds for that, and tests start many. The package itself starts
its workers anew, which is tried in corpus/engines/test_run_workers.py.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from normlens.corpus.engines import processes

_CONTEXT = multiprocessing.get_context("forkserver")
# They are imported and nothing else is done: a torch that has computed cannot be forked.
_CONTEXT.set_forkserver_preload(
    [
        "normlens.cli",
        "normlens.corpus.engines.processes",
        "normlens.corpus.runs.runs",
        "normlens.loading",
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.bert.modeling_bert",
        "transformers.modeling_utils",
    ]
)


def _process(target: Callable[..., None], args: tuple[Any, ...], **named: Any) -> Any:
    """A process with the environment of this one, as if it were started anew."""
    return _CONTEXT.Process(target=_begun, args=(dict(os.environ), target, args), **named)


def _begun(environment: dict[str, str], target: Callable[..., None], args: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*args)


#: Stands in for `multiprocessing` where the package starts workers.
MULTIPROCESSING = SimpleNamespace(
    get_context=lambda _: SimpleNamespace(Pipe=_CONTEXT.Pipe, Process=_process)
)


def run_command(words: Sequence[Any], path: Path, said: Path, patience: float) -> int:
    """Run the command line in a process of its own, and return its exit status.

    Modules in `path` can be imported there, and what it writes to stderr goes to the file `said`.
    """
    process = _process(_command, ([str(word) for word in words], str(path), str(said)))
    process.start()
    process.join(patience)
    process.kill()
    process.join()
    return int(process.exitcode)


def _command(words: list[str], path: str, said: str) -> None:
    import torch

    from normlens import cli

    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
    sys.path.insert(0, path)
    torch.set_num_threads(1)
    processes.multiprocessing = MULTIPROCESSING  # type: ignore[attr-defined]
    sys.exit(cli.main(words))
