"""Stages of blocks beside each other: tokenising, the model, measures and tables."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch

import normlens
from normlens.corpus import Run, run
from normlens.corpus.engines import local, worker
from normlens.corpus.engines.worker import LARGEST_BATCH, Task, Worker
from normlens.corpus.measures import measure
from normlens.corpus.runs.options import Execution, RunOptions

N, BLOCK = 18, 3
PATIENCE = 60.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("overlap")
    examples.tiny_checkpoint(folder / "model")
    examples.corpus_file(folder / "corpus.txt", N)
    return folder


@pytest.fixture(scope="module")
def lens(place: Path) -> Any:
    return normlens.load(place / "model", device="cpu")


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads call the model, as they do on a GPU."""
    for module in (worker, local):
        monkeypatch.setattr(module, "model_threads", lambda lens: worker.ON_GPU)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_one_block_is_measured_while_the_model_works_on_another(
    place: Path, lens: Any, tmp_path: Path
) -> None:
    together = threading.Barrier(2, timeout=PATIENCE)

    @measure(schema={"length": int})
    def meeting(item: Any) -> dict[str, list[int]]:
        if item.index in (0, BLOCK):  # of the first block and of the second
            together.wait()
        return {"length": [len(item)]}

    options: dict[str, Any] = {"measures": [meeting], "block_size": BLOCK}
    done = run(lens, place / "corpus.txt", tmp_path / "run", **options)
    assert done.status().failures == 0
    examples.assert_each_once(done)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_slow_block_does_not_hold_up_the_others(place: Path, lens: Any, tmp_path: Path) -> None:
    last = threading.Event()

    @measure(schema={"length": int})
    def slow_at_first(item: Any) -> dict[str, list[int]]:
        if item.index == N - 1:
            last.set()
        if item.index == 0:
            assert last.wait(PATIENCE), "the last block was never begun"
        return {"length": [len(item)]}

    options: dict[str, Any] = {"measures": [slow_at_first], "block_size": BLOCK}
    done = run(lens, place / "corpus.txt", tmp_path / "run", **options)
    assert done.status().failures == 0
    examples.assert_each_once(done)


@pytest.fixture(scope="module")
def in_turn(place: Path, lens: Any) -> Run:
    return run(lens, place / "corpus.txt", place / "in-turn", block_size=BLOCK)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_threads_beside_each_other_change_no_bit(
    place: Path, lens: Any, in_turn: Run, tmp_path: Path
) -> None:
    done = run(lens, place / "corpus.txt", tmp_path / "run", block_size=BLOCK)
    examples.assert_same_tables(done, in_turn, tolerance=0)


# Batches of a GPU ---------------------------------------------------------------------------------


def test_batches_of_short_sequences_are_full_on_a_gpu(
    place: Path, lens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 * LARGEST_BATCH
    corpus = examples.corpus_file(tmp_path / "corpus.txt", count)
    whole = run(lens, corpus, tmp_path / "one-by-one", measures="mixing", block_size=count)
    sizes: list[tuple[int, Any]] = []
    analyse = type(lens).analyse

    def noted(self: Any, items: Any, options: Any, **more: Any) -> Any:
        sizes.append((len(items), options.batch_size))
        return analyse(self, items, options, **more)

    monkeypatch.setattr(type(lens), "analyse", noted)
    # A GPU on which a largest batch of sequences of 128 tokens fits.
    monkeypatch.setattr(Worker, "_filled", lambda self: worker.FILLED)
    filled = run(lens, corpus, tmp_path / "filled", measures="mixing", block_size=count)
    assert sizes == [(count, count)]
    examples.assert_same_tables(filled, whole)


@pytest.mark.parametrize(("fits", "filled"), [(64, worker.FILLED), (63, 0)])
def test_a_gpu_is_filled_where_a_largest_batch_fits(
    lens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int, filled: int
) -> None:
    options = RunOptions("model", "data", measures=("mixing",))
    made = Worker(Task(options, ("mixing",), str(tmp_path)), lens)
    assert made._filled() == 0  # on a CPU
    monkeypatch.setattr(worker, "affordable", lambda lens, n: fits if n == 128 else 0)
    monkeypatch.setattr(type(lens), "device", torch.device("meta"))
    assert made._filled() == filled
    made.execution = Execution(batch_size=8)
    assert made._filled() == 0  # as many as were asked for
