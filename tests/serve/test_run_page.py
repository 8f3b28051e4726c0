"""The page of a run: what it shows, that it is only read, and that nothing of a run is markup."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import httpx
import pytest
from serving import PATIENCE

from normlens import cli
from normlens.corpus.runs import activity as activities
from normlens.corpus.runs.activity import Activity, WorkerActivity
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.status import Status
from normlens.corpus.runs.watched import Watched
from normlens.errors import InputError
from normlens.serve import run_app
from normlens.serve.run_page import run_page
from normlens.serve.server import RunServer

HOSTILE = "<script>alert(1)</script>&\"'"


def activity(**fields: Any) -> Activity:
    now = time.time()
    workers = tuple(
        WorkerActivity(f"node{n}:{4000 + n}", "cuda", 30 + n, 1900, n, 8.5 + n, now - 4)
        for n in range(4)
    )
    told = {
        "pid": 71, "host": "node0", "epoch": 2, "started": now - 600, "written": now - 1,
        "every": 5.0, "sequences": 7600, "failures": 3, "retried": 1, "rate": 36.0,
        "in_flight": 8, "oldest": {"317": now - 41.0, "318": now - 12.0}, "workers": workers,
    }  # fmt: skip
    return Activity(**{**told, **fields})


def status(**fields: Any) -> Status:
    stages = {"reading": 10.0, "tokenising": 40.0, "maps": 2000.0, "measures": 300.0}
    told = {
        "model": "minilm", "data": "sst2", "sequences": 60_614, "done": 20_288, "failures": 7,
        "tokens": 400_000, "shards": 948, "shards_done": 317, "seconds": 600.0, "stages": stages,
        "running": "pid 71 on node0, since 2026-01-01T00:00:00+00:00", "attempts": {317: 2},
    }  # fmt: skip
    return Status(**{**told, **fields})


class FakeRun:
    """A run whose state a test sets."""

    def __init__(self) -> None:
        self.folder = LocalFolder("/runs/my-run")
        self.now: Watched | InputError = Watched(status(), activity())
        self.reads = 0

    def watched(self) -> Watched:
        self.reads += 1
        if isinstance(self.now, InputError):
            raise self.now
        return self.now


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    monkeypatch.setattr(run_app, "KEPT", 0.0)
    return FakeRun()


@pytest.fixture
def http(run: FakeRun) -> Iterator[httpx.Client]:
    page = RunServer(run)  # type: ignore[arg-type]
    page.start()
    thread = threading.Thread(target=page.run)
    thread.start()
    with httpx.Client(base_url=page.url, timeout=PATIENCE, trust_env=False) as client:
        yield client
    page.stop()
    thread.join(PATIENCE)
    assert page.close()
    assert not thread.is_alive()


def test_the_page_says_how_far_the_run_is(http: httpx.Client) -> None:
    answer = http.get("/")
    assert answer.status_code == 200
    text = re.sub(r"<[^>]*>", " ", answer.text)
    for words in (
        "minilm on sst2",
        "/runs/my-run",
        "running",
        "20,288",
        "of 60,614 sequences",
        "36.0/s",
        "0:18:40",
        "node3:4003",
        "shard 317",
        "Where the time goes",
    ):
        assert words in text, words
    assert '<progress max="60614" value="20288"' in answer.text
    assert 'http-equiv="refresh" content="5"' in answer.text
    assert "<script" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http" not in re.sub(r'http-equiv="refresh"', "", answer.text)  # nothing from elsewhere
    assert "prefers-color-scheme: dark" in http.get("/static/run.css").text


def test_the_same_as_json(http: httpx.Client, run: FakeRun) -> None:
    found = http.get("/api/run").json()
    assert (found["state"], found["done"], found["activity"]["in_flight"]) == ("running", 20_288, 8)
    assert found["activity"]["workers"][3]["name"] == "node3:4003"
    run.now = Watched(status(running=None), None)
    found = http.get("/api/run").json()
    assert (found["state"], found["activity"]) == ("stopped", None)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (Watched(status(running=None), None), "stopped"),
        (Watched(status(running=None, done=60_614, shards_done=948), None), "complete"),
        (Watched(status(), None, "has not told anything yet"), "has not told anything yet"),
        (Watched(status(sequences=0, done=0, shards=0, shards_done=0, stages={}), None), "0/s"),
    ],
)
def test_other_states(now: Watched, words: str, http: httpx.Client, run: FakeRun) -> None:
    run.now = now
    assert words in http.get("/").text


def test_a_run_that_cannot_be_read_is_a_line(http: httpx.Client, run: FakeRun) -> None:
    run.now = InputError(f"cannot read {HOSTILE}")
    page = http.get("/")
    assert page.status_code == 503
    assert "cannot read &lt;script&gt;" in page.text
    answer = http.get("/api/run")
    assert (answer.status_code, answer.json()) == (503, {"detail": f"cannot read {HOSTILE}"})
    run.now = Watched(status(), activity())
    assert http.get("/").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/api/run", "/static/run.css"])
def test_nothing_can_be_written(method: str, path: str, http: httpx.Client, run: FakeRun) -> None:
    assert http.request(method, path).status_code == 405
    assert run.reads == 0


@pytest.mark.parametrize("path", ["/manifest.json", "/api/models", "/static/../manifest.json"])
def test_no_request_leads_to_a_file(path: str, http: httpx.Client) -> None:
    assert http.get(path).status_code == 404


def test_strangers_are_refused(http: httpx.Client) -> None:
    assert http.get("/", headers={"Host": "evil.example"}).status_code == 421
    headers = {"Origin": "http://evil.example"}
    assert http.get("/api/run", headers=headers).status_code == 403


def test_many_visitors_cost_one_reading(
    http: httpx.Client, run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_app, "KEPT", 3600.0)
    for _ in range(5):
        assert http.get("/").status_code == 200
    assert run.reads == 1


def test_markup_stays_text() -> None:
    hostile = WorkerActivity(HOSTILE, HOSTILE, 1, 1, 0, 1.0, time.time())
    watched = Watched(
        status(model=HOSTILE, data=HOSTILE, running=HOSTILE, stages={HOSTILE: 1.0}),
        activity(workers=(hostile,)),
        HOSTILE,
    )
    page = run_page(HOSTILE, watched)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8


def test_numbers_of_shards_are_numbers(tmp_path: Path) -> None:
    """A run may come from someone else."""
    folder = LocalFolder(tmp_path)
    told = {**vars(activity()), "workers": [], "oldest": {"<b>": 1.0}}
    (tmp_path / "activity.json").write_bytes(activities.sealed(told))
    assert activities.read_activity(folder) is None


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["serve", "--run", str(tmp_path), "--port", "0"]) == 2
    assert "there is no run in" in capsys.readouterr().err
    assert cli.main(["serve", "--run", str(tmp_path), "--model", "minilm"]) == 2
    assert "start one server each" in capsys.readouterr().err


@pytest.mark.skipif(which("chromium") is None, reason="needs Chromium")
def test_a_browser_shows_it(http: httpx.Client, tmp_path: Path) -> None:
    dumped = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={tmp_path}", str(http.base_url)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "20,288" in dumped.stdout
