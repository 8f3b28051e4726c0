"""How far a run is: its driver's heartbeat, who believes it, and for how long."""

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
from normlens.corpus.runs import status as statuses
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.ledger import HEARTBEAT, FileSet, State, locked
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.status import Heartbeat, HeartbeatWriter, read_heartbeat
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


def beat(**fields: Any) -> Heartbeat:
    """The heartbeat of a driver of this process."""
    now = time.time()
    worker = {"device": "cpu", "blocks": 5, "sequences": 100, "failures": 1, "seconds": 40.0}
    whole = Heartbeat(
        run="here",
        state="running",
        pid=os.getpid(),
        host=socket.gethostname(),
        epoch=1,
        time=now,
        every=5.0,
        sequences=N,
        done=2,
        failures=1,
        blocks=N // BLOCK,
        blocks_done=1,
        rate=2.0,
        in_flight={"3": now - 30, "4": now - 7},
        workers={"node:7": {**worker, "last": now - 3}},
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
    writer = HeartbeatWriter(stopped.folder, stopped.manifest, State(0), epoch=4)
    for number in range(5):
        writer.handed_out(number)
    for number in range(4):
        writer.computed(number, 4)
    writer.recorded(done(1, 3))
    writer.recorded(done(0, deaths=2))
    writer.recorded(done(2, pid=8))
    found = writer.beat()
    assert list(found.in_flight) == ["4"]
    assert (found.done, found.failures, found.blocks_done, found.retried) == (16, 4, 4, 2)
    assert (found.epoch, found.sequences, found.blocks) == (4, N, N // BLOCK)
    first, last = found.workers.items()  # the last to finish comes last
    assert (last[0], first[0], first[1]["device"]) == ("node:8", "node:7", "cuda")
    counts = [first[1][name] for name in ("blocks", "sequences", "failures", "seconds")]
    assert counts == [3, 12, 3, 6.0]


def test_the_rate_is_that_of_late(stopped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(statuses.time, "time", lambda: clock[0])
    writer = HeartbeatWriter(stopped.folder, stopped.manifest, State(0), epoch=1)
    for _ in range(100):  # one sequence per second
        clock[0] += 4
        writer.computed(0, 4)
    assert writer.beat().rate == pytest.approx(1.0)
    for _ in range(100):  # ten times as fast
        clock[0] += 0.4
        writer.computed(0, 4)
    for _ in range(500):
        clock[0] += 0.4
        writer.computed(0, 4)
    assert writer.beat().rate == pytest.approx(10.0)
    clock[0] += 10_000  # and then nothing more
    assert writer.beat().rate < 0.2


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
            status = Run.open(self.out).status()
            if status.heartbeat is not None and status.heartbeat.workers:
                self.seen.append(status)
                return
            time.sleep(0.01)


def test_a_running_run_tells_what_it_does(
    place: Path, lens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statuses, "EVERY_LOCAL", 0.01)
    out = tmp_path / "run"
    looking = Looking(out)
    finished = run(lens, place / "corpus.txt", out, progress=looking, **OPTIONS)
    [seen] = looking.seen
    assert seen.state == "running"
    assert f"pid {os.getpid()} on " in str(seen.running)
    [(name, worker)] = seen.heartbeat.workers.items()
    assert name == f"{socket.gethostname()}:{os.getpid()}"
    assert worker["sequences"] >= BLOCK
    assert name in str(seen)
    assert "in flight" in seen.line()
    assert json.loads(json.dumps(seen.as_json()))["heartbeat"]["epoch"] == 1
    # At its end the file is gone, so it is no stray one.
    assert not (out / HEARTBEAT).exists()
    assert (finished.status().state, finished.status().heartbeat) == ("complete", None)
    assert finished.check().sound


def test_what_cannot_be_written_does_not_stop_a_run(
    place: Path, lens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def full(self: Heartbeat, folder: Any) -> None:
        calls.append(1)
        raise OutputError("no space left")

    monkeypatch.setattr(Heartbeat, "write", full)
    examples.assert_each_once(run(lens, place / "corpus.txt", tmp_path / "run", **OPTIONS))
    assert calls


# Who is believed ----------------------------------------------------------------------------------


def test_the_lock_decides_whether_a_run_is_dead(stopped: Run) -> None:
    beat().write(stopped.folder)  # left by a process that was killed
    assert read_heartbeat(stopped.folder) is not None
    status = stopped.status()
    assert (status.state, status.running, status.heartbeat) == ("stopped", None, None)
    assert "stopped; go on with normlens run --resume" in str(status)
    assert "in flight" not in str(status)


def test_who_holds_the_lock_is_believed(stopped: Run) -> None:
    with locked(stopped.folder):
        assert stopped.status().heartbeat is None
        assert "has not written a heartbeat yet" in str(stopped.status())
        beat().write(stopped.folder)
        status = stopped.status()
        assert status.heartbeat is not None
        assert status.note == ""
        assert status.rate == 2.0
        assert status.seconds_left == status.left / 2
        assert "2 blocks, block 3 for 0:00:30" in str(status)
        assert "node:7 (cpu): 5 blocks, 2.5/s, 1 failed, last 0:00:03 ago" in str(status)
        beat(pid=1).write(stopped.folder)  # of the driver before
        assert stopped.status().heartbeat is None
        beat(time=time.time() - 3600).write(stopped.folder)
        assert "last heard of 1:00:00 ago; the process lives, but may hang" in str(stopped.status())


def test_in_a_store_which_has_no_lock_a_fresh_heartbeat_counts(place: Path, lens: Any) -> None:
    pytest.importorskip("fsspec", reason="stores: pip install fsspec")
    url = f"memory://told-{time.time_ns()}/run"

    class Impatient(Progress):
        def advance(self, sequences: int, failures: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(lens, place / "corpus.txt", url, progress=Impatient(), **OPTIONS)
    found = Run.open(url)
    assert found.status().state == "stopped"
    beat(every=60.0).write(found.folder)
    assert found.status().state == "running"
    assert f"running (pid {os.getpid()} on " in str(found.status())
    beat(every=60.0, time=time.time() - 600).write(found.folder)
    assert (found.status().state, found.status().running) == ("stopped", None)
    assert "was last heard of 0:10:00 ago; it has probably ended" in str(found.status())


@pytest.mark.parametrize(
    "contents",
    [b"", b"{", b"[]", statuses.sealed({}), statuses.sealed(vars(beat()))[:-20],
     statuses.sealed({**vars(beat()), "more": 1})],
)  # fmt: skip
def test_a_damaged_heartbeat_is_none(contents: bytes, tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    beat().write(folder)
    assert read_heartbeat(folder) is not None
    (tmp_path / HEARTBEAT).write_bytes(contents)
    assert read_heartbeat(folder) is None


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    out = tmp_path / "run"
    out.mkdir()
    (out / HEARTBEAT).symlink_to(precious)
    with pytest.raises(NormLensError):
        beat().write(LocalFolder(out))
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
    assert last["in_flight"] == {}


def test_a_heartbeat_every_minute(
    stopped: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(statuses, "LINE_EVERY", 0.02)
    lines: list[str] = []

    def interrupted() -> None:
        with HeartbeatWriter(stopped.folder, stopped.manifest, State(0), 1, "-"):
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

    def status(self) -> Any:
        return self._states.pop(0)


@pytest.fixture
def states(stopped: Run) -> list[Any]:
    with locked(stopped.folder):
        beat().write(stopped.folder)
        first = stopped.status()
        beat(rate=5.0, in_flight={"3": 1.0}).write(stopped.folder)
        second = stopped.status()
    return [first, second, stopped.status()]


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
    assert (found["state"], found["heartbeat"], found["running"]) == ("stopped", None, None)
