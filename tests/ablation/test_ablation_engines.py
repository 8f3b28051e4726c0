"""Ablations on every engine: stopped and resumed, by several processes, by Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch

import normlens
from normlens.corpus import Run, resume, run
from normlens.corpus.runs.folder import RunError, SomeFailedWarning
from normlens.corpus.runs.progress import Progress
from normlens.errors import InputError
from normlens.studies.ablation.interventions import digest_of, gather
from normlens.studies.ablation.measure import AblationMeasure

BLOCK = 4


class Stopping(Progress):
    """Stops a run, as Ctrl-C does, once a block is done."""

    def advance(self, sequences: int, failures: int) -> None:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory, models: dict[str, Path]) -> AblationMeasure:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("statistics") / "statistics.safetensors"
    lens = normlens.load(models["next-token"], device="cpu")
    statistics = gather(lens, lens.encode(["ab cd ef", "gh ab"]))
    statistics.save(path)
    return AblationMeasure(
        components=("FF", "ATTN"), layers="each", digest=digest_of(path), statistics=str(path)
    )


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
    models: dict[str, Path],
    corpora: dict[str, Path],
    measure: AblationMeasure,
) -> Run:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    options: Any = {"measures": [measure], "block_size": BLOCK, "device": "cpu", "file_size": 0}
    return run(models["next-token"], corpora["next-token"], out, **options)


def test_a_stopped_run_ends_with_the_same_bits(
    tmp_path: Path,
    models: dict[str, Path],
    corpora: dict[str, Path],
    measure: AblationMeasure,
    whole: Run,
) -> None:
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
def test_several_processes_come_to_the_same_bits(
    tmp_path: Path,
    models: dict[str, Path],
    corpora: dict[str, Path],
    measure: AblationMeasure,
    whole: Run,
) -> None:
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


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ray")
def test_ray_comes_to_the_same_numbers(
    tmp_path: Path,
    models: dict[str, Path],
    corpora: dict[str, Path],
    measure: AblationMeasure,
    whole: Run,
) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray (pip install 'normlens[ray]')")
    try:
        done = run(
            models["next-token"],
            corpora["next-token"],
            tmp_path / "run",
            measures=[measure],
            block_size=BLOCK,
            device="cpu",
            engine="ray",
            address="local",
        )
    finally:
        ray.shutdown()
    examples.assert_same_tables(done, whole)


def test_batches_change_nothing_but_last_digits(
    tmp_path: Path,
    models: dict[str, Path],
    corpora: dict[str, Path],
    measure: AblationMeasure,
    whole: Run,
) -> None:
    lens = normlens.load(models["next-token"], device="cpu")
    options: Any = {"measures": [measure], "block_size": BLOCK, "batch_size": 3}
    done = run(lens, corpora["next-token"], tmp_path / "run", **options)
    examples.assert_same_tables(done, whole, tolerance=1e-4)


def test_other_ablations_do_not_go_on_with_a_run(measure: AblationMeasure, whole: Run) -> None:
    other = AblationMeasure(components=("FF",), kinds=("zero",))
    with pytest.raises(RunError, match="it would mix two runs"):
        resume(whole.folder.url, measures=[other])


def test_a_sequence_without_a_loss_is_a_failure(
    tmp_path: Path, models: dict[str, Path], measure: AblationMeasure
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"tokens": ["a"]}\n{"tokens": ["a", "##b"]}\n')
    lens = normlens.load(models["next-token"], device="cpu")
    with pytest.warns(SomeFailedWarning):
        done = run(lens, data, tmp_path / "run", measures=[measure], batch_size=2)
    [failure] = done.table("failures").to_dict("records")
    assert failure["index"] == 0
    assert "next token" in failure["reason"]
    assert set(done.table("ablations")["index"]) == {1}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"components": "LN2"}, "has no LN2"),
        ({"components": "FF", "kinds": "frozen-sigma"}, "cannot be ablated by 'frozen-sigma'"),
        ({"kinds": "mean"}, "need a first pass"),
        ({"loss": "masked", "kinds": "zero"}, "causal language model"),
        ({"layers": "7", "kinds": "zero"}, "out of range"),
    ],
)
def test_what_a_model_does_not_have_is_refused_before_the_run_begins(
    options: dict[str, Any],
    line: str,
    tmp_path: Path,
    models: dict[str, Path],
    corpora: dict[str, Path],
) -> None:
    lens = normlens.load(models["next-token"], device="cpu")
    out = tmp_path / "run"
    with pytest.raises(InputError, match=line):
        run(
            lens,
            corpora["next-token"],
            out,
            measures="ablation",
            settings={"ablation": options},
        )
    assert not (out / "manifest.json").exists()
