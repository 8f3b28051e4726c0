"""A driver that an exception ends behind its last record: the next one ends its work."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples

from normlens.corpus import Run, resume, run
from normlens.corpus.runs import compaction_plan, work
from normlens.corpus.runs.compaction import Compaction, Stopped
from normlens.corpus.runs.folder import Folder, LocalFolder, open_folder
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.shards import PARTS, ROOT
from normlens.corpus.runs.ledger import ACTIVITY
from normlens.corpus.runs.watching import Watching
from normlens.errors import OutputError

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
N, SHARD = 14, 2
OPTIONS: dict[str, Any] = {"shard_size": SHARD, "measures": "norms"}


@pytest.fixture(scope="module")
def whole(place: Path, lens: Any) -> Run:
    return run(lens, place / "corpus.txt", place / "whole", **OPTIONS)


@pytest.fixture(autouse=True)
def three_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_plan, "FILES", 3)


@pytest.fixture(params=["disk", "store"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "run")
    pytest.importorskip("fsspec", reason="stores: pip install fsspec")
    return f"memory://last-record-{time.time_ns()}/run"


class Fallen(Exception):
    """What no part of a run expects."""


def fall(*_: Any) -> None:
    raise Fallen


# Where drivers end --------------------------------------------------------------------------------


def falls_before_the_rest_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the last shards are left as the workers wrote them."""
    step = Compaction.step

    def falls(self: Compaction, *, rest: bool = False) -> bool:
        if rest:
            raise Fallen
        return step(self, rest=rest)

    monkeypatch.setattr(Compaction, "step", falls)


def falls_before_joined_files_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that one of the last joined files stands for are still there."""
    step = Compaction.step

    def falls(self: Compaction, *, rest: bool = False) -> bool:
        if rest:
            monkeypatch.setattr(type(self.folder), "remove_all", fall)
        return step(self, rest=rest)

    monkeypatch.setattr(Compaction, "step", falls)


def is_interrupted_while_the_rest_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while the driver waits for the thread that joins."""
    step = Compaction.step

    def interrupts(self: Compaction, *, rest: bool = False) -> bool:
        if rest:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert self.stopped.wait(60)
            raise Stopped
        return step(self, rest=rest)

    monkeypatch.setattr(Compaction, "step", interrupts)


ENDS: dict[Callable[[pytest.MonkeyPatch], None], type[BaseException]] = {
    falls_before_the_rest_is_joined: Fallen,
    falls_before_joined_files_are_removed: Fallen,
    is_interrupted_while_the_rest_is_joined: KeyboardInterrupt,
}


def table_files(done: Run) -> list[str]:
    return [*done.folder.names(ROOT), *done.folder.names(PARTS)]


@pytest.mark.parametrize("ends", ENDS, ids=lambda ends: ends.__name__)
def test_the_next_driver_joins_and_removes_what_is_left(
    ends: Callable[[pytest.MonkeyPatch], None], out: str, place: Path, lens: Any, whole: Run
) -> None:
    with pytest.MonkeyPatch.context() as context:
        ends(context)
        with pytest.raises(ENDS[ends]):
            run(lens, place / "corpus.txt", out, **OPTIONS)
    left = Run.open(out)
    assert left.status().complete
    assert len(table_files(left)) > len(left.tables)
    # Nobody works on it, and nothing is told of the driver that is gone.
    assert (left.watched().state, left.watched().activity) == ("complete", None)
    done = resume(out, model=lens)
    assert done.check().problems == ()
    assert len(table_files(done)) == len(done.tables)
    assert done.folder.read(ACTIVITY) is None
    examples.assert_same_tables(done, whole, tolerance=0)


class Impatient(Progress):
    """Ends a driver at its first shard."""

    def advance(self, sequences: int, failures: int) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("error", [Fallen, KeyboardInterrupt], ids=lambda error: error.__name__)
def test_what_was_not_swept_is_swept_by_the_next_driver(
    error: type[BaseException],
    out: str,
    place: Path,
    lens: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(*_: Any) -> None:
        raise error

    with pytest.raises(KeyboardInterrupt):
        run(lens, place / "corpus.txt", out, progress=Impatient(), **OPTIONS)
    begun = Run.open(out)
    assert begun.watched().state == "stopped"
    stray = f"{ROOT}/norms/shard-000003.1-7.parquet"
    begun.folder.write(stray, b"left over")
    with monkeypatch.context() as context:
        context.setattr(work, "sweep", end)
        with pytest.raises(error):
            resume(out, model=lens)
    problems = {problem.file for problem in Run.open(out).check().problems}
    if isinstance(begun.folder, LocalFolder):
        assert problems == {stray}
    else:  # files that were joined wait for the end, too
        assert stray in problems
        assert all(name.startswith((f"{ROOT}/", f"{PARTS}/")) for name in problems)
    assert resume(out, model=lens).check().problems == ()


def test_a_driver_that_ends_before_it_works_leaves_the_work_to_the_next(
    out: str, place: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        falls_before_joined_files_are_removed(context)
        with pytest.raises(Fallen):
            run(lens, place / "corpus.txt", out, **OPTIONS)
    with monkeypatch.context() as context:
        context.setattr(Watching, "__enter__", fall)
        with pytest.raises(Fallen):
            resume(out, model=lens)
    assert Run.open(out).check().problems
    assert resume(out, model=lens).check().problems == ()


def test_files_that_could_not_be_removed_at_once_are_removed_at_the_end(
    out: str, place: Path, lens: Any, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Noting(Progress):
        def say(self, text: str) -> None:
            said.append(text)

    refused = 0

    def refuse_once(self: Folder, names: Any) -> None:
        nonlocal refused
        if refused == 0 and any(name.startswith(f"{ROOT}/") for name in names):
            refused += 1
            raise OutputError("cannot remove: not now")
        remove_all(self, names)

    kind = type(open_folder(out))
    remove_all = kind.remove_all
    monkeypatch.setattr(kind, "remove_all", refuse_once)
    if kind is LocalFolder:
        done = run(lens, place / "corpus.txt", out, progress=Noting(), **OPTIONS)
        assert said[-1] == "note: some files were not compacted: cannot remove: not now"
    else:
        with pytest.raises(OutputError, match=r"not now; what is done is kept.*--resume"):
            run(lens, place / "corpus.txt", out, **OPTIONS)
        done = resume(out, model=lens)
    assert refused == 1
    assert done.check().problems == ()
    examples.assert_same_tables(done, whole, tolerance=0)
