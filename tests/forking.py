"""Processes that are forked from one that has imported torch and transformers.

A Python that starts anew needs seconds for that, and tests start many. The package itself starts
its workers anew, which is tried in corpus/engines/test_run_workers.py.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch

from normlens.corpus.engines import local

_CONTEXT = multiprocessing.get_context("forkserver")
# They are imported and nothing else is done: a torch that has computed cannot be forked.
_CONTEXT.set_forkserver_preload(
    [
        "normlens.cli",
        "normlens.corpus.engines.local",
        "normlens.corpus.runs.runs",
        "normlens.loading.load",
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


def run_python(
    source: str | Path, *words: Any, path: Path | None = None, patience: float = 600.0
) -> subprocess.CompletedProcess[str]:
    """Run code or a script with arguments, as `subprocess.run` does with a Python of its own.

    Modules in the folder `path` can be imported there.
    """
    with TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("stdout", "stderr")]
        arguments = [str(word) for word in words]
        process = _process(_run, (source, arguments, path, [str(file) for file in said]))
        process.start()
        process.join(patience)
        process.kill()
        process.join()
        texts = [file.read_text() for file in said]
    return subprocess.CompletedProcess([str(source), *arguments], process.exitcode, *texts)


def _run(source: str | Path, words: list[str], path: Path | None, said: list[str]) -> None:
    for number, file in enumerate(said, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    torch.set_num_threads(1)
    local.multiprocessing = MULTIPROCESSING  # type: ignore[attr-defined]
    sys.path[:0] = [] if path is None else [str(path)]
    sys.argv = [str(source), *words]
    if isinstance(source, Path):
        sys.path.insert(0, str(source.parent))
        runpy.run_path(str(source), run_name="__main__")
    else:
        exec(source, {"__name__": "__main__"})
