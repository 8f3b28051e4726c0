"""Several processes of one machine: the same tables, and a worker that dies loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch

import normlens
from normlens.corpus import Run, resume, run
from normlens.errors import ModelLoadError

N = 20
PATIENCE = 120.0
#: Kills its process at one sequence, the first time.
FATAL = """
import os, pathlib
from normlens.corpus.measures import measure

@measure(schema={"length": int})
def fatal(item):
    flag = pathlib.Path(__file__).with_name("died")
    if item.index == 13 and not flag.exists():
        flag.touch()
        os._exit(9)
    return {"length": [len(item)]}
"""


def test_workers_give_the_same_tables_and_may_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    model = examples.tiny_checkpoint(tmp_path / "model")
    corpus = examples.corpus_file(tmp_path / "corpus.txt", N)
    (tmp_path / "fatal_measure.py").write_text(FATAL)
    monkeypatch.syspath_prepend(tmp_path)
    options: dict[str, Any] = {
        "measures": "similarity,mixing,norms,fatal_measure:fatal",
        "block_size": 3,
    }
    done = run(model, corpus, tmp_path / "workers", device="cpu", workers=2, **options)
    assert (tmp_path / "died").exists()
    assert done.status().attempts[13 // 3] == 1
    assert done.status().failures == 0
    examples.assert_each_once(done)
    lens = normlens.load(model, device="cpu")
    alone = run(lens, corpus, tmp_path / "alone", **options)
    examples.assert_same_tables(done, alone)


@pytest.mark.usefixtures("forked_workers")
def test_what_a_worker_cannot_load_is_one_line(tmp_path: Path) -> None:
    corpus = examples.corpus_file(tmp_path / "corpus.txt", 2)
    with pytest.raises(ModelLoadError, match="does not exist"):
        run(tmp_path / "no-model", corpus, tmp_path / "run", device="cpu", workers=2)


#: Waits at every sequence behind the first block, until a file says that it may go on.
#: The command line; a shell's background jobs, such as these tests may be, are born deaf to Ctrl-C.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from normlens import cli
sys.exit(cli.main())
"""
SLOW = """
import pathlib, time
from normlens.corpus.measures import measure

seen = []

@measure(schema={"length": int})
def slow(item):
    # The first block of each process passes, whichever it is.
    seen.append(item.index)
    while len(seen) > 3 and not pathlib.Path(__file__).with_name("go").exists():
        time.sleep(0.05)
    return {"length": [len(item)]}
"""


def left_in(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_ctrl_c_is_one_line_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = examples.tiny_checkpoint(tmp_path / "model")
    corpus = examples.corpus_file(tmp_path / "corpus.txt", N)
    (tmp_path / "waiting_measure.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "run"
    words = ["run", "--model", model, "--data", corpus, "--out", out, "--device", "cpu"]
    words += [
        "--workers",
        2,
        "--block-size",
        3,
        "--file-minutes",
        0,
        "--measures",
        "waiting_measure:slow",
        "--quiet",
    ]
    source = str(Path(normlens.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{tmp_path}"},
        start_new_session=True,
    )
    try:
        last = time.monotonic() + PATIENCE
        while not (out / "manifest.json").exists() or not Run.open(out).status().blocks_done:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < last
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: every process gets it
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert errors.split("\n")[-2:] == [
        f"stopped; what is done is kept, go on with: normlens run --resume {out}",
        "",
    ]
    assert len(errors.split()) < 20, errors
    while left_in(process.pid):
        assert time.monotonic() < last
        time.sleep(0.05)
    (tmp_path / "go").touch()
    done = resume(out, measures="waiting_measure:slow")
    examples.assert_each_once(done)
    assert len(done.table("slow")) == N
