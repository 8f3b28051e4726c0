"""Several processes of one machine: the same tables, and a worker that dies loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch

import normlens
from normlens.corpus import Run, resume, run
from normlens.corpus.errors import RunError
from normlens.errors import ModelLoadError

N = 20
#: Kills its process at one sequence, the first time.
FATAL = """
import os, pathlib
from normlens.measures import measure

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
        "shard_size": 3,
    }
    out = tmp_path / "workers"
    with pytest.raises(RunError, match="a worker process died"):
        run(model, corpus, out, device="cpu", workers=2, **options)
    assert Run.open(out).status().left > 0
    done = resume(out, workers=2, measures=options["measures"])
    examples.assert_each_once(done)
    lens = normlens.load(model, device="cpu")
    alone = run(lens, corpus, tmp_path / "alone", **options)
    examples.assert_same_tables(done, alone)


def test_what_a_worker_cannot_load_is_one_line(tmp_path: Path) -> None:
    corpus = examples.corpus_file(tmp_path / "corpus.txt", 2)
    with pytest.raises(ModelLoadError, match="does not exist"):
        run(tmp_path / "no-model", corpus, tmp_path / "run", device="cpu", workers=2)
