"""The server of a run's page: three addresses to read, and nothing that writes."""

from __future__ import annotations

import threading
import time
from typing import Any

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import HTMLResponse
from starlette.types import ASGIApp

from normlens._version import __version__
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.watched import Watched
from normlens.errors import NormLensError
from normlens.serve.refusals import EVERYWHERE, problems, say_one_line
from normlens.serve.run_page import STYLE, error_page, run_page
from normlens.serve.security import Guard, Hosts

#: Seconds for which an answer is given again, so that many visitors cost no more than one.
KEPT = 2.0
#: The largest body that is read; no request here needs one.
_BODY = 1024
_UNREADABLE = problems(_503="The run cannot be read at present.")


class RunReader:
    """Reads a run for visitors, at most once in a while however many ask."""

    def __init__(self, run: Run):
        self.run = run
        self._lock = threading.Lock()
        self._read = float("-inf")
        self._answer: Watched | NormLensError | None = None

    def watched(self) -> Watched:
        """How far the run is, or the error of reading it."""
        with self._lock:
            if time.monotonic() - self._read >= KEPT:
                try:
                    self._answer = self.run.watched()
                except NormLensError as error:
                    self._answer = error
                self._read = time.monotonic()
            answer = self._answer
        if isinstance(answer, Watched):
            return answer
        raise answer or NormLensError("the run was not read")


def create_run_app(run: Run, hosts: Hosts) -> ASGIApp:
    """Build the whole server but its socket."""
    app = FastAPI(
        title="NormLens run",
        version=__version__,
        summary="How far a run over a corpus is; read-only.",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=EVERYWHERE,
    )
    say_one_line(app)
    reader, url = RunReader(run), run.folder.everywhere

    # Without `async` they run in threads: reading a store takes a while.
    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        try:
            return HTMLResponse(run_page(url, reader.watched()))
        except NormLensError as error:
            return HTMLResponse(error_page(url, str(error)), 503)

    @app.get("/static/run.css", include_in_schema=False)
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

    @app.get("/api/run", operation_id="run", summary="How far the run is", responses=_UNREADABLE)
    def state() -> dict[str, Any]:
        try:
            return reader.watched().as_json()
        except NormLensError as error:
            raise HTTPException(503, str(error)) from error

    return Guard(app, hosts, _BODY)
