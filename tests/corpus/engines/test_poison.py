"""Sequences that kill their worker: they become failures, and every other row is as always."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch
from forking import run_python

from normlens.corpus import Run, run
from normlens.corpus.engines import pool as pools
from normlens.corpus.runs.folder import RunError

pytestmark = [pytest.mark.usefixtures("forked_workers"), examples.some_fail]
N, BLOCK, CULPRIT = 12, 4, 5
PATIENCE = 300.0
#: Kills its process at the sequences that the environment names, or fails there; notes each visit.
POISON = """
import os, pathlib, signal
from normlens.corpus.measures import measure

@measure(schema={"length": int})
def poison(item):
    with pathlib.Path(os.environ["VISITS"]).open("a") as visits:
        visits.write(f"{item.index}\\n")
    if str(item.index) in os.environ["POISONOUS"].split():
        if os.environ["HOW"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("poison")
    return {"length": [len(item)]}
"""
MEASURES = "similarity,mixing,amplification,norms,poison_measure:poison"
OPTIONS: dict[str, Any] = {"measures": MEASURES, "block_size": BLOCK, "device": "cpu"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model, a corpus and the measure, which worker processes can import."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("poison")
    examples.tiny_checkpoint(folder / "model")
    examples.corpus_file(folder / "corpus.txt", N)
    (folder / "poison_measure.py").write_text(POISON)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def expected(place: Path) -> Run:
    """A run in which the culprit fails without killing anything."""
    with pytest.MonkeyPatch.context() as patch:
        poisoned(patch, place / "of-expected", CULPRIT, how="raise")
        return run(place / "model", place / "corpus.txt", place / "expected", **OPTIONS)


def poisoned(patch: pytest.MonkeyPatch, visits: Path, *indices: int, how: str = "kill") -> None:
    patch.setenv("POISONOUS", " ".join(map(str, indices)))
    patch.setenv("HOW", how)
    patch.setenv("VISITS", str(visits))


def assert_same_but_for_reasons(done: Run, expected: Run) -> None:
    """Every table has the same bits; `failures` has the culprit, with another reason."""
    examples.assert_each_once(done)
    assert done.tables == expected.tables
    for name in done.tables:
        a, b = done.table(name), expected.table(name)
        if name == "failures":
            assert a["index"].tolist() == b["index"].tolist() == [CULPRIT]
            assert a["sequence"].tolist() == b["sequence"].tolist()
            assert "kills its worker: SIGKILL" in a["reason"][0]
            assert "\n" not in a["reason"][0]
        else:
            examples.assert_same_frames(a, b, name, tolerance=0)


@pytest.mark.slow
def test_processes_outlive_a_culprit(
    place: Path, expected: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, tmp_path / "visits", CULPRIT)
    done = run(
        place / "model", place / "corpus.txt", tmp_path / "run", workers=2, attempts=2, **OPTIONS
    )
    assert_same_but_for_reasons(done, expected)
    # Twice with its block, and twice alone.
    visits = (tmp_path / "visits").read_text().split()
    assert visits.count(str(CULPRIT)) == 2 + 2
    assert done.status().attempts[CULPRIT // BLOCK] == 2 + 2
    assert f"block {CULPRIT // BLOCK}: 4 failed" in str(done.status())
    assert done.check().sound


@pytest.mark.slow
def test_one_process_that_is_resumed_each_time_outlives_a_culprit(
    place: Path, expected: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process cannot outlive its own measure; the records tell the next one what it was at."""
    poisoned(monkeypatch, tmp_path / "visits", CULPRIT)
    out = tmp_path / "run"
    words = ["run", "--model", place / "model", "--data", place / "corpus.txt", "--out", out]
    words += ["--device", "cpu", "--block-size", BLOCK]
    again = ["run", "--resume", out]
    common = ["--measures", MEASURES, "--quiet"]
    statuses = [command(place, [*words, *common])]
    while statuses[-1] < 0 and len(statuses) < 5:
        statuses.append(command(place, [*again, *common]))
    # Three deaths, or four if the first one came before the record of the block before; then the
    # block is tried elsewhere, and a sequence of it fails.
    deaths = len(statuses) - 1
    assert deaths in (3, 4)
    assert statuses == [-9] * deaths + [3]
    assert_same_but_for_reasons(Run.open(out), expected)
    visits = (tmp_path / "visits").read_text().split()
    assert visits.count(str(CULPRIT)) == deaths + 2


def command(place: Path, words: list[Any]) -> int:
    code = "import sys; from normlens import cli; sys.exit(cli.main())"
    done = run_python(code, *words, path=place, patience=PATIENCE)
    assert done.returncode in (-9, 3), done.stderr
    return done.returncode


@pytest.mark.slow
def test_workers_that_die_at_every_sequence_end_in_one_line(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, tmp_path / "visits", *range(N))
    # Every death costs a start; how many are too many is counted in test_pool.py.
    monkeypatch.setattr(pools, "IN_A_ROW", 0)
    out = tmp_path / "run"
    with pytest.raises(RunError, match="died one after another and none finished") as caught:
        run(place / "model", place / "corpus.txt", out, workers=2, attempts=1, **OPTIONS)
    assert "SIGKILL" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert Run.open(out).status().done == 0


#: Ends every process that imports it, but the one that started the run.
FATAL_IMPORT = """
import multiprocessing, os, signal
from normlens.corpus.measures import measure

if multiprocessing.parent_process() is not None:
    os.kill(os.getpid(), signal.SIGKILL)

@measure(schema={"length": int})
def late(item):
    return {"length": [len(item)]}
"""


def test_workers_that_die_while_they_start_end_in_one_line(place: Path, tmp_path: Path) -> None:
    (place / "fatal_import.py").write_text(FATAL_IMPORT)
    options = OPTIONS | {"measures": "fatal_import:late"}
    out = tmp_path / "run"
    with pytest.raises(RunError, match="die while they load the model") as caught:
        run(place / "model", place / "corpus.txt", out, workers=2, attempts=2, **options)
    assert "SIGKILL" in str(caught.value)
    assert not (out / "manifest.json").exists()
