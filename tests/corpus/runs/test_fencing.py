"""A driver or a worker that was believed dead goes on: it commits and overwrites nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
from counting_store import URL, CountingStore, counting_store
from run_records import blocks_done, state_of

from normlens.corpus import Run, resume, run
from normlens.corpus.engines.worker import Task, Worker
from normlens.corpus.runs.folder import LocalFolder, RunError
from normlens.corpus.runs.ledger import Block, Ledger, State, check_same_folder, locked
from normlens.corpus.runs.progress import Progress

N = 16
OPTIONS: dict[str, Any] = {"block_size": 2, "measures": "mixing", "file_size": 0}
OUT = f"{URL}/run"


@pytest.fixture
def store() -> Iterator[type[CountingStore]]:
    with counting_store() as store:
        yield store


class Stalling(Progress):
    """Stands still after two blocks, while someone else goes on with the run."""

    def __init__(self, meanwhile: Any):
        self.meanwhile, self.done = meanwhile, 0

    def advance(self, sequences: int, failures: int) -> None:
        self.done += sequences
        if self.done == 4:
            self.meanwhile()


class StoppedError(Exception):
    """Stands for a kill."""


class Stopping(Stalling):
    def __init__(self) -> None:
        def stop() -> None:
            raise StoppedError

        super().__init__(stop)


@pytest.mark.parametrize("finishes", [True, False], ids=["finished", "stopped"])
def test_a_driver_that_stalled_cannot_commit(
    store: type[CountingStore], place: Path, lens: Any, finishes: bool
) -> None:
    seen: dict[str, bytes] = {}

    def take_over() -> None:
        if finishes:
            assert resume(OUT, model=lens).status().complete
        else:
            with pytest.raises(StoppedError):
                resume(OUT, model=lens, progress=Stopping())
        seen.update(store.objects)

    with pytest.raises(RunError, match="another process has taken over the run") as caught:
        run(lens, place / "corpus.txt", OUT, progress=Stalling(take_over), **OPTIONS)
    assert "\n" not in str(caught.value)
    # Whatever the first one wrote since, nothing of the second one's has changed.
    assert {key: store.objects[key] for key in seen} == seen
    found = Run.open(OUT)
    state = state_of(found)
    assert state.epoch == 2
    assert state.blocks_done == (N // 2 if finishes else 4)
    # Of the first driver's blocks those count that it had committed before.
    assert [record.epoch for record in state.records.values()][:3] == [1, 1, 2]
    done = resume(OUT, model=lens)
    examples.assert_each_once(done)
    alone = run(lens, place / "corpus.txt", f"{URL}/alone", **OPTIONS)
    examples.assert_same_tables(done, alone, tolerance=0)


def test_a_driver_that_sleeps_through_a_takeover_leaves_nothing_that_counts(
    store: type[CountingStore], place: Path, lens: Any
) -> None:
    """It looks for a newer claim, sleeps, and commits when the run is long complete."""
    check = Ledger.check
    slept: list[int] = []

    def sleepy(self: Ledger) -> None:
        check(self)
        if self.epoch == 1 and not slept and self._number == 2:
            slept.append(1)
            resume(OUT, model=lens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "check", sleepy)
        with pytest.raises(RunError, match="another process has taken over the run"):
            run(lens, place / "corpus.txt", OUT, **OPTIONS)
    found = Run.open(OUT)
    assert found.status().complete
    examples.assert_each_once(found)
    # What it wrote meanwhile is stray, and goes when somebody resumes the run.
    assert {problem.what for problem in found.check().problems} == {"stray: no record names it"}
    assert resume(OUT, model=lens).check().sound


def test_a_claim_without_a_base_is_passed_over(
    store: type[CountingStore], place: Path, lens: Any
) -> None:
    """A driver is killed, or sleeps, between its claim and its reading."""
    with pytest.raises(StoppedError):
        run(lens, place / "corpus.txt", OUT, progress=Stopping(), **OPTIONS)
    stopped = Run.open(OUT)
    before = blocks_done(stopped)
    sleeping = Ledger.claim(stopped.folder, stopped.manifest)
    assert (sleeping.epoch, blocks_done(stopped)) == (2, before)
    done = resume(OUT, model=lens)
    assert state_of(done).epoch == 3
    sleeping.begin(State(1))  # it wakes up
    with pytest.raises(RunError, match="another process has taken over"):
        sleeping.check()
    assert Run.open(OUT).status().complete
    assert Run.open(OUT).check().sound


def test_of_two_that_claim_at_once_one_goes_on(
    store: type[CountingStore], place: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(lens, place / "corpus.txt", OUT, **OPTIONS)
    create, second = CountingStore.pipe_file, []

    def overtaken(self: CountingStore, path: str, value: bytes, mode: str = "", **_: Any) -> None:
        if path.endswith("claims/2.json") and not second:
            second.append(1)
            Ledger.claim(done.folder, done.manifest)
        create(self, path, value, mode)

    monkeypatch.setattr(CountingStore, "pipe_file", overtaken)
    with pytest.raises(RunError, match="another process has taken over the run"):
        Ledger.claim(done.folder, done.manifest)


def test_a_worker_of_a_dead_driver_overwrites_nothing(
    tmp_path: Path, place: Path, lens: Any
) -> None:
    done = run(lens, place / "corpus.txt", tmp_path / "run", **OPTIONS)
    kept = {path: path.read_bytes() for path in (tmp_path / "run/tables").rglob("*.parquet")}
    task = Task(done.manifest.options, ("mixing",), folder=str(tmp_path / "run"))
    worker = Worker(task, lens)
    late = [worker.compute(Block(3, 6, ()), alone=True) for _ in range(2)]
    names = {file.name for record in late if record for file in record.tables.values()}
    assert len(names) == 2 * len(done.tables)
    assert {path: path.read_bytes() for path in kept} == kept
    examples.assert_each_once(Run.open(tmp_path / "run"))
    # One that knows of a newer driver writes nothing at all.
    Ledger.claim(done.folder, done.manifest)
    with pytest.raises(RunError, match="another process has taken over"):
        worker.compute(Block(3, 6, ()), alone=True)
    worker.close()


# Workers elsewhere --------------------------------------------------------------------------------


def test_a_worker_that_does_not_see_the_folder_says_so_before_it_computes(
    tmp_path: Path, place: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normlens.corpus.runs.ledger.time.sleep", lambda _: None)
    done = run(lens, place / "corpus.txt", tmp_path / "run", limit=1, measures="mixing")
    with locked(LocalFolder(tmp_path / "run")) as lock:
        task = Task(done.manifest.options, ("mixing",), str(tmp_path / "run"), lock.token)
        assert Worker(task, lens).folder.url == str(tmp_path / "run")
        # As on another machine, where there is nothing, or another disk, under that path.
        (tmp_path / "elsewhere").mkdir()
        for folder in (tmp_path / "nothing", tmp_path / "elsewhere"):
            elsewhere = Task(done.manifest.options, ("mixing",), str(folder), lock.token)
            with pytest.raises(RunError, match="does not see the run's folder") as caught:
                Worker(elsewhere, lens)
            assert f"the worker on {socket.gethostname()}" in str(caught.value)
            assert "\n" not in str(caught.value)
        assert not (tmp_path / "nothing").exists()
    # Another run's lock is another lock.
    with locked(LocalFolder(tmp_path / "run")), pytest.raises(RunError, match="does not see"):
        check_same_folder(LocalFolder(tmp_path / "run"), lock.token)
    check_same_folder(LocalFolder(tmp_path / "nothing"), None)  # a store's folder has no lock


class Meanwhile(Progress):
    """Does something once, while the model is loaded."""

    def __init__(self, meanwhile: Any):
        self.meanwhile = [meanwhile]

    def say(self, line: str) -> None:
        while self.meanwhile:
            self.meanwhile.pop()()


@pytest.mark.parametrize("stopped", [False, True], ids=["finished", "at work"])
def test_of_two_that_start_in_a_store_the_first_goes_on(
    store: type[CountingStore], place: Path, lens: Any, stopped: bool
) -> None:
    def first() -> None:
        if stopped:
            with pytest.raises(StoppedError):
                run(lens, place / "corpus.txt", OUT, progress=Stopping(), **OPTIONS)
        else:
            run(lens, place / "corpus.txt", OUT, **OPTIONS)
        seen.update(store.objects)

    seen: dict[str, bytes] = {}
    with pytest.raises(RunError, match="another process has begun a run") as caught:
        run(lens, place / "corpus.txt", OUT, progress=Meanwhile(first), **OPTIONS)
    assert "\n" not in str(caught.value)
    assert store.objects == seen
    assert resume(OUT, model=lens).status().complete


def test_a_start_whose_answer_was_lost_goes_on(
    store: type[CountingStore], place: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CountingStore.pipe_file

    def lose_answer(self: CountingStore, path: str, value: bytes, mode: str = "", **_: Any) -> None:
        write(self, path, value, mode)
        if mode == "create":
            raise TimeoutError("the answer was lost")

    monkeypatch.setattr(CountingStore, "pipe_file", lose_answer)
    assert run(lens, place / "corpus.txt", OUT, **OPTIONS).status().complete


def test_a_run_in_a_store_does_not_end_while_files_are_missing(
    store: type[CountingStore], place: Path, lens: Any
) -> None:
    whole = run(lens, place / "corpus.txt", f"{URL}/whole", **OPTIONS)

    def lose() -> None:
        del store.objects[next(key for key in store.objects if "/run/tables/mixing/" in key)]

    with pytest.raises(RunError, match=r"vanished.*--resume"):
        run(lens, place / "corpus.txt", OUT, progress=Stalling(lose), **OPTIONS)
    again = resume(OUT, model=lens)
    assert again.status().complete
    examples.assert_same_tables(again, whole, tolerance=0)
