"""Two processes never work in one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.folder import LocalFolder, open_folder
from normlens.corpus.runs.lock import holder, locked

HOLD = """
import sys, time
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.lock import locked
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
