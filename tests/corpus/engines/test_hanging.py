"""Sequences that hang: a limit ends them, and every other row is as always."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch
from forking import run_python

import normlens
from normlens.corpus import Run, resume, run
from normlens.corpus.engines import local, worker
from normlens.corpus.engines.guard import SHORT, Guard, Late, Unfinished
from normlens.corpus.measures import measure
from normlens.corpus.runs.folder import StuckError

pytestmark = [pytest.mark.usefixtures("forked_workers"), examples.some_fail]
N, BLOCK, CULPRITS = 12, 4, (5, 10)
PATIENCE = 300.0
#: Seconds that a sequence may take: far more than one takes that does not hang.
LIMIT = 5.0
#: Has no result at two sequences, in the way that the environment names.
HANGING = """
import os, re, time
from normlens.corpus.measures import measure

def sleep():
    while True:
        try:
            time.sleep(3600)
        except Exception:
            pass

def hold():  # for years, and no other thread of the process runs meanwhile
    re.match("(a+)+$", 60 * "a" + "b")

def stop(error):
    raise error

WAYS = {
    "hang": {5: sleep, 10: hold},
    "sleep": {5: sleep},
    "exit": {5: lambda: stop(SystemExit(0)), 10: lambda: stop(KeyboardInterrupt())},
    "raise": {5: lambda: stop(ValueError("no")), 10: lambda: stop(ValueError("no"))},
}

@measure(schema={"length": int})
def hanging(item):
    WAYS[os.environ["HOW"]].get(item.index, lambda: None)()
    return {"length": [len(item)]}
"""
MEASURES = "similarity,mixing,amplification,norms,hanging_measure:hanging"
OPTIONS: dict[str, Any] = {"measures": MEASURES, "block_size": BLOCK, "device": "cpu"}
TOO_LONG = f"it took longer than {LIMIT:g} s (sequence_timeout)"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model, a corpus and the measure, which worker processes can import."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("hanging")
    examples.tiny_checkpoint(folder / "model")
    examples.corpus_file(folder / "corpus.txt", N)
    (folder / "hanging_measure.py").write_text(HANGING)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def expected(place: Path) -> Run:
    """A run in which the culprits fail at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOW", "raise")
        return run(place / "model", place / "corpus.txt", place / "expected", **OPTIONS)


def assert_only_failures(done: Run, expected: Run, *reasons: str) -> None:
    """Every table has the same bits; `failures` has the culprits, with these reasons."""
    examples.assert_each_once(done)
    assert done.tables == expected.tables
    failures = done.table("failures")
    assert failures["index"].tolist() == [*CULPRITS]
    assert failures["reason"].tolist() == [*reasons]
    for name in set(done.tables) - {"failures"}:
        examples.assert_same_frames(done.table(name), expected.table(name), name, tolerance=0)


@pytest.mark.slow
def test_processes_in_which_a_sequence_hangs_are_replaced(
    place: Path, expected: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "hang")
    options: dict[str, Any] = {"workers": 2, "attempts": 1, "sequence_timeout": LIMIT, **OPTIONS}
    done = run(place / "model", place / "corpus.txt", tmp_path / "run", **options)
    mute = f"it kills its worker: it was ended after {LIMIT:g} s without an answer"
    reasons = [f"{reason}, each time it was tried alone" for reason in (TOO_LONG, mute)]
    assert_only_failures(done, expected, *reasons)
    # Once with its block at least, and twice alone.
    assert all(done.status().attempts[culprit // BLOCK] >= 1 + 2 for culprit in CULPRITS)
    # The limit is no part of what the tables depend on.
    assert resume(done.folder.url, measures=MEASURES, sequence_timeout=None).check().sound


def test_processes_in_which_a_measure_exits_live_on(
    place: Path, expected: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "exit")
    done = run(place / "model", place / "corpus.txt", tmp_path / "run", workers=2, **OPTIONS)
    ends = ("SystemExit (0)", "KeyboardInterrupt")
    reasons = [f"hanging: it ended with {end} instead of a result" for end in ends]
    assert_only_failures(done, expected, *reasons)
    assert not done.status().attempts


# Within one process -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sequence_that_hangs_in_the_one_process_is_interrupted(
    place: Path, expected: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "hang")
    before = signal.getsignal(signal.SIGALRM)
    done = run(
        place / "model", place / "corpus.txt", tmp_path / "run", sequence_timeout=LIMIT, **OPTIONS
    )
    assert_only_failures(done, expected, *[f"hanging: {TOO_LONG}"] * 2)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads than the main one call the model, as they do on a GPU."""
    for module in (worker, local):
        monkeypatch.setattr(module, "model_threads", lambda lens: worker.ON_GPU)


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_sequence_that_hangs_in_a_thread_ends_the_run_in_one_line(
    place: Path, tmp_path: Path
) -> None:
    let_go = threading.Event()

    @measure(schema={"length": int})
    def waiting(item: Any) -> dict[str, list[int]]:
        assert item.index != CULPRITS[0] or let_go.wait(PATIENCE)
        return {"length": [len(item)]}

    lens = normlens.load(place / "model", device="cpu")
    options: dict[str, Any] = {"measures": [waiting], "block_size": BLOCK}
    try:
        with pytest.raises(StuckError, match="sequence 5 hangs in a thread") as caught:
            run(lens, place / "corpus.txt", tmp_path / "run", sequence_timeout=LIMIT, **options)
        assert "\n" not in str(caught.value)
    finally:
        let_go.set()
    done = resume(tmp_path / "run", model=lens, measures=[waiting])
    examples.assert_each_once(done)
    assert done.status().failures == 0


#: Ends with the status of a command in which a thread hangs for good.
STUCK = """
import sys
from normlens import cli
from normlens.corpus.engines import local, worker
local.model_threads = worker.model_threads = lambda lens: worker.ON_GPU
sys.exit(cli.main())
"""


@pytest.mark.slow
def test_a_command_in_which_a_thread_hangs_ends(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "sleep")
    words = ["run", "--model", place / "model", "--data", place / "corpus.txt", "--device", "cpu"]
    words += ["--out", tmp_path / "run", "--block-size", BLOCK, "--measures", MEASURES, "--quiet"]
    words += ["--sequence-timeout", LIMIT]
    done = run_python(STUCK, *words, path=place, patience=PATIENCE)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: sequence 5 hangs in a thread"), done.stderr
    assert done.stderr.count("\n") == 1


# The guard alone ----------------------------------------------------------------------------------


def test_the_limit_grows_with_the_square_of_the_length() -> None:
    guard = Guard(10.0)
    assert guard.allowed([1]) == guard.allowed([SHORT]) == 10.0
    assert guard.allowed([4 * SHORT]) == 160.0
    assert guard.allowed([1, 2 * SHORT]) == 10.0 + 40.0
    assert Guard(None).allowed([1]) == Guard(0).allowed([1]) == 0.0


def test_what_is_late_is_told_in_other_threads() -> None:
    guard, begun, let_go = Guard(0.01), threading.Event(), threading.Event()
    assert guard.late() is None
    work = [lambda: (begun.set(), let_go.wait(PATIENCE)), 7, [1]]
    thread = threading.Thread(target=guard.call, args=work)
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        last = time.monotonic() + PATIENCE
        while (late := guard.late()) is None:
            assert time.monotonic() < last
            time.sleep(0.01)
        assert late == Late(7, "it took longer than 0.01 s (sequence_timeout)")
    finally:
        let_go.set()
        thread.join()
    assert guard.late() is None


def test_calls_in_other_threads_leave_the_alarm_of_the_main_thread_alone() -> None:
    guard = Guard(1.0)

    def work() -> None:
        other = threading.Thread(target=guard.call, args=[lambda: None, 1, [1]])
        other.start()
        other.join()
        time.sleep(PATIENCE)

    with pytest.raises(Unfinished, match="took longer than 1 s"):
        guard.call(work, 0, [1])


def test_an_alarm_of_somebody_else_is_left_alone() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        assert Guard(PATIENCE).call(lambda: signal.getitimer(signal.ITIMER_REAL), 0, [1])[1] == 0.0
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_errors_pass_as_they_are() -> None:
    def raising(error: BaseException) -> Any:
        raise error

    guard = Guard(PATIENCE)
    for error in (ValueError("no"), MemoryError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            guard.call(lambda: raising(error), 0, [1])  # noqa: B023
    with pytest.raises(Unfinished, match="it ended with GeneratorExit instead of a result"):
        guard.call(lambda: raising(GeneratorExit()), 0, [1])
