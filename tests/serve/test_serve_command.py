"""The command: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import PATIENCE

from normlens import cli
from normlens.loading.embedded import EMBEDDED
from normlens.serve import server

SRC = Path(server.__file__).parents[2]
# An analysis that reports one layer again and again, until it is told to stop.
ENDLESS = """
import itertools, sys, time
from normlens import cli
from normlens.serve import analyses, server

def answer(self, question, progress):
    for _ in itertools.count():
        progress(1, 2)
        time.sleep(0.01)

analyses.ServedModels.answer = answer
"""
# One that never comes back.
STUCK = """
import sys, threading
from normlens import cli
from normlens.serve import analyses, server

def answer(self, question, progress):
    progress(1, 2)
    threading.Event().wait()

analyses.ServedModels.answer = answer
server.PATIENCE = 0.1
"""
RUN = "sys.exit(cli.main(sys.argv[1:]))"


@contextmanager
def started(code: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and the address it prints."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", f"{code}\n{RUN}", "serve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, (line, process.poll(), process.stderr and process.stderr.read())
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("code", [ENDLESS, pytest.param(STUCK, marks=pytest.mark.slow)])
def test_ctrl_c_with_an_analysis_in_work_and_others_waiting(code, folder):
    with (
        started(code, "--port", "0", "--model", folder, "--no-example") as (process, url),
        httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http,
    ):
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*/", url)
        assert http.get("api/models").json()["models"][0]["name"] == Path(folder).name
        ids = [
            http.post("api/analyses", json={"model": Path(folder).name, "text": text}).json()["id"]
            for text in ("the cat", "a mat")
        ]
        while http.get(f"api/analyses/{ids[0]}").json()["layers_done"] < 1:
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "")
    assert err == "Ctrl-C stops it.\n"


# Without a process of its own --------------------------------------------------------------------


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a command that must fail."""
    assert cli.main(["serve", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_a_port_in_use(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = error_of(capsys, "--model", folder, "--port", str(port))
    assert f"port {port} is in use; choose another with --port" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--host", "no.such.host.invalid"), "no address 'no.such.host.invalid'"),
        (("--model", "./nowhere"), "'./nowhere' does not exist"),
        (("--port", "65536"), "65535"),
        (("--tokens", "0"), "--tokens must be at least 1"),
        (("--device", "abacus"), "there is no device 'abacus'"),
    ],
)
def test_errors_are_one_line(words, message, folder, capsys):
    given = words if "--model" in words else ("--model", folder, *words)
    given = given if "--port" in words else ("--port", "0", *given)
    assert message in error_of(capsys, *given)


def test_no_model_is_installed(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    line = error_of(capsys, "--port", "0")
    assert "--model" in line
    assert "normlens models --install minilm" in line


def test_without_the_extra(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    line = error_of(capsys, "--port", "0", "--model", folder)
    assert "pip install 'normlens[serve]'" in line


@pytest.fixture
def opened(monkeypatch):
    """Addresses that a browser was sent to; the server itself does not run."""
    import webbrowser

    import uvicorn

    addresses: queue.Queue[str] = queue.Queue()

    def run(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(webbrowser, "open", addresses.put)
    return addresses


def test_a_browser_is_opened_on_request_only(opened, folder, capsys):
    assert cli.main(["serve", "--port", "0", "--no-example", "--model", folder]) == 0
    assert opened.empty()
    capsys.readouterr()
    assert cli.main(["serve", "--port", "0", "--no-example", "--model", folder, "--open"]) == 0
    assert opened.get(timeout=PATIENCE) in capsys.readouterr().out


def test_other_addresses_come_with_a_warning(opened, folder, capsys):
    assert (
        cli.main(["serve", "--port", "0", "--no-example", "--model", folder, "--host", "0.0.0.0"])
        == 0
    )
    out, err = capsys.readouterr()
    assert " at http://127.0.0.1:" in out
    assert "there is no password" in err


@pytest.mark.slow
@pytest.mark.skipif(
    not EMBEDDED["minilm"].installed,
    reason="the embedded model is not installed (normlens models --install minilm)",
)
def test_installed_models_are_served_by_default(opened, capsys):
    assert cli.main(["serve", "--port", "0", "--no-example"]) == 0
    assert "minilm" in capsys.readouterr().out
