"""Watching a run: what its driver tells, who believes it, and for how long."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
from rich.console import Console

import normlens
from normlens.cli import corpus, main
from normlens.corpus import Run, run
from normlens.corpus.runs import status as activities
from normlens.corpus.runs import status as watchings
from normlens.corpus.runs.folder import LocalFolder, open_folder
from normlens.corpus.runs.ledger import ACTIVITY, FileSet, State, locked
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.status import Activity, Watching, read_activity
from normlens.errors import NormLensError, OutputError

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
N, BLOCK = 12, 2
OPTIONS: dict[str, Any] = {"block_size": BLOCK, "measures": "mixing", "file_size": 0}


@pytest.fixture
def stopped(place: Path, lens: Any, tmp_path: Path) -> Run:
    """A run that was interrupted after its first block."""

    class Impatient(Progress):
        def advance(self, sequences: int, failures: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(lens, place / "corpus.txt", tmp_path / "run", progress=Impatient(), **OPTIONS)
    return Run.open(tmp_path / "run")


def told(**fields: Any) -> Activity:
    """What a driver of this process tells."""
    now = time.time()
    whole = Activity(
        pid=os.getpid(),
        host=socket.gethostname(),
        epoch=1,
        started=now - 60,
        written=now,
        every=5.0,
        sequences=100,
        failures=1,
        retried=0,
        rate=2.0,
        in_flight=2,
        oldest={"3": now - 30, "4": now - 7},
        workers=(activities.WorkerActivity("node:7", "cpu", 5, 100, 1, 2.5, now - 3),),
    )
    return replace(whole, **fields)


# What the driver notes ----------------------------------------------------------------------------


def done(*blocks: int, deaths: int = 0, pid: int = 7) -> FileSet:
    return FileSet(
        epoch=1,
        blocks=blocks,
        sequences=3 * len(blocks),
        failures=len(blocks),
        tokens=9,
        started=100.0,
        finished=100.0 + 2 * len(blocks),
        seconds={},
        tables={},
        by={"host": "node", "pid": pid, "device": "cuda"},
        deaths={blocks[0]: deaths} if deaths else {},
    )


def test_what_goes_out_and_comes_back_is_counted(stopped: Run) -> None:
    watching = Watching(stopped.folder, stopped.manifest, State(0), epoch=4)
    for number in range(4):
        watching.handed_out(number)
    watching.finished(done(1, 3))
    watching.finished(done(0, deaths=2))
    watching.finished(done(2, pid=8))
    watching.handed_out(5)
    activity = watching.activity()
    assert activity.in_flight == 1
    assert list(activity.oldest) == ["5"]
    assert (activity.sequences, activity.failures, activity.retried) == (16, 4, 2)
    assert activity.rate == 0
    last, first = activity.workers  # the last to finish comes first
    assert (last.name, first.name, first.device) == ("node:8", "node:7", "cuda")
    assert (first.blocks, first.sequences, first.failures, first.rate) == (3, 12, 3, 2.0)
    line = watching.heartbeat("running")
    assert (line["done"], line["failures"], line["blocks_done"]) == (16, 4, 4)
    assert line["workers"]["node:7"] == {"blocks": 3, "rate": 2.0}
    assert (line["epoch"], line["in_flight"], line["retried"]) == (4, 1, 2)


def test_the_rate_is_that_of_late(stopped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(watchings.time, "time", lambda: clock[0])
    watching = Watching(stopped.folder, stopped.manifest, State(0), epoch=1)
    for _ in range(100):  # one sequence per second
        clock[0] += 4
        watching.computed(4)
    assert watching.activity().rate == pytest.approx(1.0)
    for _ in range(100):  # ten times as fast
        clock[0] += 0.4
        watching.computed(4)
    for _ in range(500):
        clock[0] += 0.4
        watching.computed(4)
    assert watching.activity().rate == pytest.approx(10.0)
    clock[0] += 10_000  # and then nothing more
    assert watching.activity().rate < 0.2


# While a run goes on ------------------------------------------------------------------------------


class Looking(Progress):
    """Looks at the run, after its second block, until its driver has told of a worker."""

    def __init__(self, out: Path):
        self.out, self.seen, self.blocks = out, [], 0

    def advance(self, sequences: int, failures: int) -> None:
        self.blocks += 1
        if self.blocks != 2:
            return
        for _ in range(3000):
            watched = Run.open(self.out).watched()
            if watched.activity is not None and watched.activity.workers:
                self.seen.append(watched)
                return
            time.sleep(0.01)


def test_a_running_run_tells_what_it_does(
    place: Path, lens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchings, "EVERY_LOCAL", 0.01)
    out = tmp_path / "run"
    looking = Looking(out)
    finished = run(lens, place / "corpus.txt", out, progress=looking, **OPTIONS)
    [watched] = looking.seen
    assert watched.state == "running"
    assert f"pid {os.getpid()} on " in str(watched.running)
    [worker] = watched.activity.workers
    assert worker.name == f"{socket.gethostname()}:{os.getpid()}"
    assert worker.sequences >= BLOCK
    assert "in flight" in str(watched)
    assert worker.name in str(watched)
    assert "blocks in flight" in watched.line()
    assert json.loads(json.dumps(watched.as_json()))["activity"]["in_flight"] >= 0
    # At its end nothing is left to tell, and the file is no stray one.
    assert not (out / ACTIVITY).exists()
    assert finished.watched().state == "complete"
    assert finished.watched().activity is None
    assert finished.check().sound


def test_what_cannot_be_written_does_not_stop_a_run(
    place: Path, lens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def full(self: Activity, folder: Any) -> None:
        calls.append(1)
        raise OutputError("no space left")

    monkeypatch.setattr(Activity, "write", full)
    examples.assert_each_once(run(lens, place / "corpus.txt", tmp_path / "run", **OPTIONS))
    assert calls


def test_an_object_store_is_written_to_once_a_minute(
    place: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec", reason="stores: pip install fsspec")
    url = f"memory://watched-{time.time_ns()}/run"
    writes = []
    kept = Activity.write

    def write(self: Activity, folder: Any) -> None:
        writes.append(self)
        kept(self, folder)

    monkeypatch.setattr(Activity, "write", write)
    run(lens, place / "corpus.txt", url, **OPTIONS)
    assert [activity.every for activity in writes] == [60.0]
    assert open_folder(url).read(ACTIVITY) is None


# Who is believed ----------------------------------------------------------------------------------


def test_the_lock_decides_whether_a_run_is_dead(stopped: Run) -> None:
    told().write(stopped.folder)  # left by a process that was killed
    assert read_activity(stopped.folder) is not None
    watched = stopped.watched()
    assert (watched.state, watched.running, watched.activity) == ("stopped", None, None)
    assert "stopped; go on with normlens run --resume" in str(watched)
    assert "in flight" not in str(watched)


def test_who_holds_the_lock_is_believed(stopped: Run) -> None:
    with locked(stopped.folder):
        assert stopped.watched().activity is None
        assert "has not told anything yet" in str(stopped.watched())
        told().write(stopped.folder)
        watched = stopped.watched()
        assert watched.activity is not None
        assert watched.note == ""
        assert watched.rate == 2.0
        assert watched.seconds_left == stopped.status().left / 2
        assert "2 blocks, block 3 for 0:00:30" in str(watched)
        assert "node:7 (cpu): 5 blocks, 2.5/s, 1 failed, last 0:00:03 ago" in str(watched)
        told(pid=1).write(stopped.folder)  # of the driver before
        assert stopped.watched().activity is None
        told(written=time.time() - 3600).write(stopped.folder)
        assert "told 1:00:00 ago; the process lives, but may hang" in str(stopped.watched())


def test_a_store_has_no_lock_so_what_was_told_last_counts(place: Path, lens: Any) -> None:
    pytest.importorskip("fsspec", reason="stores: pip install fsspec")
    url = f"memory://told-{time.time_ns()}/run"

    class Impatient(Progress):
        def advance(self, sequences: int, failures: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(lens, place / "corpus.txt", url, progress=Impatient(), **OPTIONS)
    found = Run.open(url)
    assert found.watched().state == "stopped"
    assert "no process has told that it works here" in str(found.watched())
    told(every=60.0).write(found.folder)
    watched = found.watched()
    assert watched.state == "running"
    assert f"running (pid {os.getpid()} on " in str(watched)
    told(every=60.0, written=time.time() - 600).write(found.folder)
    watched = found.watched()
    assert (watched.state, watched.running) == ("stopped", None)
    assert "was last heard of 0:10:00 ago; it has probably ended" in str(watched)


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"{",
        b"[]",
        activities.sealed({}),
        activities.sealed({**vars(told()), "workers": []})[:-20],
        activities.sealed({**vars(told()), "workers": [], "pid": "7"}),
        activities.sealed({**vars(told()), "workers": [], "written": float("nan")}),
        activities.sealed({**vars(told()), "workers": [], "oldest": [1]}),
        activities.sealed({**vars(told()), "workers": [{"name": 3}]}),
        activities.sealed({**vars(told()), "workers": [], "more": 1}),
        activities.sealed({**vars(told()), "workers": [], "host": 5}),
    ],
)
def test_what_is_damaged_tells_nothing(contents: bytes, tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    told().write(folder)
    assert read_activity(folder) is not None
    (tmp_path / ACTIVITY).write_bytes(contents)
    assert read_activity(folder) is None


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    out = tmp_path / "run"
    out.mkdir()
    for name in (ACTIVITY, f"{ACTIVITY}.tmp"):
        (out / name).symlink_to(precious)
    with pytest.raises(OutputError):
        told().write(LocalFolder(out))
    (out / f"{ACTIVITY}.tmp").unlink()
    told().write(LocalFolder(out))
    assert precious.read_text() == "mine"


# Lines of JSON ------------------------------------------------------------------------------------


def test_a_heartbeat(place: Path, lens: Any, tmp_path: Path) -> None:
    file = tmp_path / "beats.jsonl"
    file.write_text('{"of": "another run"}\n')
    run(lens, place / "corpus.txt", tmp_path / "run", heartbeat=str(file), **OPTIONS)
    other, first, last = map(json.loads, file.read_text().splitlines())
    assert other == {"of": "another run"}
    assert (first["state"], first["done"], first["sequences"]) == ("running", 0, N)
    assert (last["state"], last["done"], last["blocks_done"]) == ("complete", N, N // BLOCK)
    assert last["run"] == str(tmp_path / "run")
    assert last["in_flight"] == 0
    assert last["seconds_left"] == 0


def test_a_heartbeat_every_minute(
    stopped: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchings, "ACCOUNT_EVERY", 0.02)
    lines: list[str] = []

    def interrupted() -> None:
        with Watching(stopped.folder, stopped.manifest, State(0), 1, "-"):
            while len(lines) < 4:
                time.sleep(0.01)
                lines.extend(capsys.readouterr().out.splitlines())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    states = [json.loads(line)["state"] for line in lines + capsys.readouterr().out.splitlines()]
    assert states[-1] == "stopped"
    assert set(states[:-1]) == {"running"}


def test_a_heartbeat_that_cannot_be_written_is_said_before_the_run(
    place: Path, tmp_path: Path
) -> None:
    given = place / "model", place / "corpus.txt", tmp_path / "r"
    with pytest.raises(NormLensError, match="cannot write the heartbeat to"):
        normlens.run(*given, heartbeat=tmp_path / "none" / "beats")
    assert not (tmp_path / "r").exists()


# The command --------------------------------------------------------------------------------------


class Played:
    """A run that is seen in one state after the other."""

    def __init__(self, run: Run, *states: Any):
        self.folder, self._states = run.folder, list(states)

    def watched(self) -> Any:
        return self._states.pop(0)


@pytest.fixture
def states(stopped: Run) -> list[Any]:
    with locked(stopped.folder):
        told().write(stopped.folder)
        first = stopped.watched()
        told(rate=5.0, in_flight=1).write(stopped.folder)
        second = stopped.watched()
    return [first, second, stopped.watched()]


def test_lines_in_a_pipe_until_the_run_ends(
    stopped: Run, states: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(corpus.time, "sleep", slept.append)
    corpus.watch_run(Played(stopped, *states))  # type: ignore[arg-type]
    assert slept == [10.0, 10.0]
    first, second, last = capsys.readouterr().out.splitlines()
    done = stopped.status().done
    assert first == (
        f"{done}/{N} sequences, 2.0/s, 2 blocks in flight, 1 worker so far, 0 failed, "
        f"0:00:0{(N - done) // 2} left"
    )
    assert "5.0/s, 1 block in flight" in second
    assert last.startswith(f"{done}/{N} sequences, ")
    assert last.endswith("0 failed, stopped")
    corpus.watch_run(Played(stopped, *states), as_json=True)  # type: ignore[arg-type]
    told_states = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
    assert told_states == ["running", "running", "stopped"]


def test_no_worker_has_finished_a_block_yet(stopped: Run) -> None:
    with locked(stopped.folder):
        told(workers=()).write(stopped.folder)
        watched = stopped.watched()
    assert "2 blocks in flight, 0 failed" in watched.line()
    assert "workers    none has finished a block yet" in str(watched)


def test_a_live_view_on_a_terminal(
    stopped: Run, states: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, markup=False)
    monkeypatch.setattr(corpus, "console_for", lambda: console)
    monkeypatch.setattr(corpus.time, "sleep", lambda seconds: None)
    corpus.watch_run(Played(stopped, *states))  # type: ignore[arg-type]
    shown = screen.getvalue()
    assert "node:7" in shown
    assert "sequences/s" in shown
    assert "state      running" in shown
    assert "state      stopped" in shown


def test_the_command(stopped: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", stopped.folder.url, "--watch"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["status", stopped.folder.url]) == 0
    assert "state      stopped" in capsys.readouterr().out
    assert main(["status", stopped.folder.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["activity"], found["running"]) == ("stopped", None, None)
