"""A server in this process, and models whose analyses wait to be let on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from normlens.options import LoadOptions
from normlens.serve.analyses import Limits, Question, ServedModels
from normlens.serve.server import PageServer

PATIENCE = 60.0
ON_CPU = LoadOptions(device="cpu")


class Site:
    """A served page, from the socket to the models; `http` talks to it."""

    def __init__(
        self, models: ServedModels, limits: Limits | None = None, *, example: bool = False
    ):
        self.models = models
        self.page = PageServer(models, limits or Limits(), example=example)
        self.page.start()
        self.jobs, self.url = self.page.jobs, self.page.url
        self.thread = threading.Thread(target=self.page.run)
        self.thread.start()
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: Any) -> None:
        self.http.close()
        self.page.stop()
        self.thread.join(PATIENCE)
        assert self.page.close()
        assert not self.thread.is_alive()

    # What a page does ---------------------------------------------------------------------------

    def submit(self, text: str = "the cat", **more: Any) -> str:
        answer = self.http.post("api/analyses", json=self.request(text, **more))
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    def request(self, text: str, /, **more: Any) -> dict[str, Any]:
        return {"model": self.models.names[0], "text": text} | more

    def status(self, id: str) -> dict[str, Any]:
        answer = self.http.get(f"api/analyses/{id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, id: str) -> dict[str, Any]:
        """The status of an analysis once it has ended."""
        last = time.monotonic() + PATIENCE
        while (status := self.status(id))["state"] in ("queued", "running"):
            assert time.monotonic() < last, status
            time.sleep(0.01)
        return status

    def result(self, id: str) -> httpx.Response:
        return self.http.get(f"api/analyses/{id}/result")


class StepwiseModels(ServedModels):
    """Models that stop behind every layer until `go` lets them on."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.at: queue.Queue[tuple[str, int]] = queue.Queue()
        self.go = threading.Semaphore(0)

    def answer(self, question: Question, progress: Callable[[int, int], None]) -> bytes:
        def step(done: int, layers: int) -> None:
            progress(done, layers)
            self.at.put((question.text, done))
            assert self.go.acquire(timeout=PATIENCE)

        return super().answer(question, step)

    def reached(self) -> tuple[str, int]:
        """Text and layers done where the worker stands next."""
        return self.at.get(timeout=PATIENCE)

    def let_go(self) -> None:
        self.go.release(1000)


def watched(page: Any) -> list[str]:
    """Everything that the page complains about from now on."""
    complaints: list[str] = []
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints
