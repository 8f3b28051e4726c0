"""A driver or a worker that was believed dead goes on: it commits and overwrites nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
from counting_store import URL, CountingStore, counting_store

from normlens.corpus import Run, resume, run
from normlens.corpus.engines.worker import Task, Worker
from normlens.corpus.runs import compacting
from normlens.corpus.runs.folder import LocalFolder, RunError
from normlens.corpus.runs.lock import check_same_folder, locked
from normlens.corpus.runs.ledger import read_state
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.shards import Shard, placed

N = 16
OPTIONS: dict[str, Any] = {"shard_size": 2, "measures": "mixing"}
OUT = f"{URL}/run"


@pytest.fixture
def store() -> Iterator[type[CountingStore]]:
    with counting_store() as store:
        yield store


class Stalling(Progress):
    """Stands still after two shards, while someone else goes on with the run."""

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
    state = read_state(found.folder, found.manifest)
    assert state.epoch == 2
    assert len(state.done) == (N // 2 if finishes else 4)
    # Of the first driver's shards those count that it had committed before.
    assert [done.epoch for done in state.done.values()][:2] == [1, 1]
    assert {done.epoch for number, done in state.done.items() if number > 1} == {2}
    done = resume(OUT, model=lens)
    examples.assert_each_once(done)
    alone = run(lens, place / "corpus.txt", f"{URL}/alone", **OPTIONS)
    examples.assert_same_tables(done, alone, tolerance=0)


def test_a_worker_of_a_dead_driver_overwrites_nothing(
    tmp_path: Path, place: Path, lens: Any
) -> None:
    done = run(lens, place / "corpus.txt", tmp_path / "run", **OPTIONS)
    kept = {path: path.read_bytes() for path in (tmp_path / "run/shards").rglob("*.parquet")}
    task = Task(done.manifest.options, ("mixing",), folder=str(tmp_path / "run"))
    # It has other records, so other bytes; an attempt of another driver has other names.
    late = Worker(task, lens).compute(Shard(3, 6, (), epoch=2, attempt=1))
    again = Worker(task, lens).compute(Shard(3, 6, (), epoch=1, attempt=2))
    names = {file.name for record in (late, again) for file in record.tables.values()}
    assert len(names) == 2 * len(done.tables)
    places = [placed(name) for name in names]
    assert all(place is not None and place.number == 3 for place in places)
    assert {path: path.read_bytes() for path in kept} == kept
    examples.assert_each_once(Run.open(tmp_path / "run"))


# Workers elsewhere --------------------------------------------------------------------------------


def test_a_worker_that_does_not_see_the_folder_says_so_before_it_computes(
    tmp_path: Path, place: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normlens.corpus.runs.lock.time.sleep", lambda _: None)
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
        del store.objects[next(key for key in store.objects if "/run/shards/mixing/" in key)]

    with pytest.raises(RunError, match=r"vanished.*--resume"):
        run(lens, place / "corpus.txt", OUT, progress=Stalling(lose), **OPTIONS)
    again = resume(OUT, model=lens)
    assert again.status().complete
    examples.assert_same_tables(again, whole, tolerance=0)


def test_files_that_were_joined_in_a_store_stay_until_the_end(
    store: type[CountingStore], place: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(lens, place / "corpus.txt", OUT, **OPTIONS)
    before = {key for key in store.objects if "/shards/" in key}
    with monkeypatch.context() as patched:
        patched.setattr(compacting, "sweep", lambda *_: None)
        compacting.compact(done.folder, done.manifest, 64.0)
    assert before <= store.objects.keys()
    compacting.compact(done.folder, done.manifest, 64.0)
    state = read_state(done.folder, done.manifest)
    assert state.compacted
    vouched = {file.name for table in state.records.tables for file in state.files(table)}
    tables = {key for key in store.objects if key.endswith(".parquet")}
    assert {key.removeprefix("counted/run/") for key in tables} == vouched
