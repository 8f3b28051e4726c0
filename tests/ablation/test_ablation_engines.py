"""Ablations on every engine: stopped and resumed, by several processes, by Ray."""

from __future__ import annotations

from typing import Any

import pytest
import run_examples as examples
import torch

import normlens
from normlens.corpus import Run, resume, run
from normlens.corpus.runs.folder import SomeFailedWarning
from normlens.corpus.runs.progress import Progress
from normlens.studies.ablation.interventions import digest_of, gather
from normlens.studies.ablation.measure import AblationMeasure

BLOCK = 4


class Stopping(Progress):
    """Stops a run, as Ctrl-C does, once a block is done."""

    def advance(self, sequences: int, failures: int) -> None:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def measure(tmp_path_factory, models):
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("statistics") / "statistics.safetensors"
    lens = normlens.load(models["next-token"], device="cpu")
    statistics = gather(lens, lens.encode(["ab cd ef", "gh ab"]))
    statistics.save(path)
    return AblationMeasure(
        components=("FF", "ATTN"), layers="each", digest=digest_of(path), statistics=str(path)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory, models, corpora, measure):
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    options: Any = {"measures": [measure], "block_size": BLOCK, "device": "cpu", "file_size": 0}
    return run(models["next-token"], corpora["next-token"], out, **options)


def test_a_stopped_run_ends_with_the_same_bits(tmp_path, models, corpora, measure, whole):
    model, data = models["next-token"], corpora["next-token"]
    options: Any = {"measures": [measure], "block_size": BLOCK, "device": "cpu", "file_size": 0}
    with pytest.raises(KeyboardInterrupt):
        run(model, data, tmp_path / "run", progress=Stopping(), **options)
    status = Run.open(tmp_path / "run").status()
    assert 0 < status.done < status.sequences
    done = resume(tmp_path / "run", measures=[measure])
    examples.assert_same_tables(done, whole, tolerance=0)
    assert done.status().stages["ablations"] > 0


@pytest.mark.usefixtures("forked_workers")
def test_several_processes_come_to_the_same_bits(tmp_path, models, corpora, measure, whole):
    done = run(
        models["next-token"],
        corpora["next-token"],
        tmp_path / "run",
        measures=[measure],
        block_size=BLOCK,
        device="cpu",
        workers=2,
    )
    examples.assert_same_tables(done, whole, tolerance=0)


def test_a_sequence_without_a_loss_is_a_failure(tmp_path, models, measure):
    data = tmp_path / "data.jsonl"
    data.write_text('{"tokens": ["a"]}\n{"tokens": ["a", "##b"]}\n')
    lens = normlens.load(models["next-token"], device="cpu")
    with pytest.warns(SomeFailedWarning):
        done = run(lens, data, tmp_path / "run", measures=[measure], batch_size=2)
    [failure] = done.table("failures").to_dict("records")
    assert failure["index"] == 0
    assert "next token" in failure["reason"]
    assert set(done.table("ablations")["index"]) == {1}
