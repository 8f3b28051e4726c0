"""Two processes never work in one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normlens.corpus.runs import ledger
from normlens.corpus.runs.folder import LocalFolder, RunError, open_folder
from normlens.corpus.runs.ledger import holder, locked
from normlens.errors import OutputError

HOLD = """
import sys, time
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.ledger import locked
with locked(LocalFolder(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_the_second_is_told_who_the_first_is(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    with locked(folder):
        with (
            pytest.raises(RunError, match=rf"pid {os.getpid()} on .*, since .* is working"),
            locked(folder),
        ):
            pass
        assert f"pid {os.getpid()}" in str(holder(folder))
    assert holder(folder) is None
    with locked(folder):
        pass


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match=f"pid {process.pid} on"), locked(folder):
            pass
        assert f"pid {process.pid}" in str(holder(folder))
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    time.sleep(0.05)
    with locked(folder):
        assert f"pid {os.getpid()}" in str(holder(folder))


def test_the_lock_is_let_go_when_work_fails(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), locked(folder):
        raise ZeroDivisionError
    with locked(folder):
        pass


def test_object_stores_have_no_lock() -> None:
    folder = open_folder("memory://normlens-lock")
    with locked(folder), locked(folder):
        assert holder(folder) is None


def test_a_new_folder_that_nothing_was_written_to_goes_with_its_lock(tmp_path: Path) -> None:
    new = LocalFolder(tmp_path / "new")
    with pytest.raises(ZeroDivisionError), locked(new):
        raise ZeroDivisionError
    assert not new.path.exists()
    with pytest.raises(ZeroDivisionError), locked(new):
        _write_and_fail(new)
    assert new.names() == ["lock", "manifest.json"]
    there = LocalFolder(tmp_path / "there")
    there.path.mkdir()
    with pytest.raises(ZeroDivisionError), locked(there):
        raise ZeroDivisionError
    assert there.names() == ["lock"]


def test_a_lock_whose_folder_was_removed_is_worth_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opened the lock before the folder was removed must not believe to hold it."""
    take, folder = ledger._take, LocalFolder(tmp_path / "run")

    def removed_meanwhile(descriptor: int, path: Path) -> bool:
        path.unlink()
        return take(descriptor, path)

    monkeypatch.setattr(ledger, "_take", removed_meanwhile)
    with pytest.raises(OutputError, match="was moved or removed"), locked(folder):
        pass


def _write_and_fail(folder: LocalFolder) -> None:
    folder.write("manifest.json", b"{}")
    raise ZeroDivisionError
