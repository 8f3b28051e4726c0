"""The served page and its interface in a real browser: own pages work, foreign ones do not."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlencode

import pytest
from serving import Site, StepwiseModels

# What a script of a page learns from a request: its status, or that the browser kept it away.
ASK = """async ([address, method, body]) => {
  const headers = body === null ? {} : {"Content-Type": "application/json"};
  try { return (await fetch(address, {method, body, headers})).status; }
  catch { return "kept away"; }
}"""


@pytest.fixture(scope="module")
def elsewhere():
    """The address of another server on this machine."""

    class Blank(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Blank) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def address_of(site: Site, text: str) -> str:
    return f"{site.url}#{urlencode({'model': site.models.names[0], 'text': text})}"


def test_an_analysis_is_cancelled_from_the_page(stepwise, page):
    models: StepwiseModels = stepwise.models  # type: ignore[assignment]
    page.goto(address_of(stepwise, "the cat"))
    models.reached()
    with page.expect_response(lambda answer: answer.request.method == "DELETE") as answered:
        page.locator("[data-action=cancel]").click()
    assert answered.value.status == 200
    id = answered.value.url.rpartition("/")[2]
    assert stepwise.status(id)["state"] == "cancelled"
    models.let_go()
    page.get_by_text("Cancelled.").wait_for()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "api/models"), ("POST", "api/analyses"), ("DELETE", "api/analyses/x")],
)
def test_a_foreign_page_learns_nothing(method, path, site, elsewhere, page):
    page.goto(elsewhere)
    assert page.evaluate(ASK, [f"{site.url}{path}", method, None]) == "kept away"


def test_a_foreign_page_cannot_start_an_analysis_blindly(site, elsewhere, page, monkeypatch):
    submitted: list[Any] = []
    monkeypatch.setattr(site.jobs, "submit", lambda *job: submitted.append(job))
    page.goto(elsewhere)
    # Without a preflight and without a look at the answer, as any page may.
    page.evaluate(
        """async ([address, body]) => {
          await fetch(address, {method: "POST", mode: "no-cors", body}).catch(() => null);
        }""",
        [f"{site.url}api/analyses", f'{{"model": "{site.models.names[0]}", "text": "a mat"}}'],
    )
    assert submitted == []
