"""The server's page and interface: who may ask, addresses to calls, one-line refusals."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from normlens._version import __version__
from normlens.errors import one_line
from normlens.serve.analyses import (
    CANCELLED,
    DONE,
    KINDS,
    CitationRequest,
    Description,
    Job,
    Jobs,
    Limits,
    Question,
    ServedModels,
    bounded,
)
from normlens.viewer import pages
from normlens.viewer.pages import script, shell

# Who may talk to the server, and how much they may say.
#
# A page anywhere on the web can send requests to 127.0.0.1 from its visitor's browser, and can
# give its own name that address (DNS rebinding). Neither gets through: the Host header must name
# this machine, and a page's requests must come from the page that this server sent. Starlette's
# middleware of trusted hosts takes the first of two Host headers and answers in plain text.


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CLOSE = {"Connection": "close"}  # the rest of a body is not waited for
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


class Hosts:
    """Names of a server at this address that a Host header may hold, and others that were allowed.

    Whatever the port: it is left open for tunnels (``ssh -L``); the Origin must match it exactly.
    """

    def __init__(self, host: str, also: Iterable[str] = ()):
        # A browser sends an address as Host only to a page it found there, so any will do.
        self._any_address = is_everywhere(host)
        own = socket.gethostname() if self._any_address else host
        named = (f"[{name}]" if ":" in name and "[" not in name else name for name in (own, *also))
        self._names = {*LOOPBACK, *(name.lower() for name in named)}

    def allow(self, name: str) -> bool:
        is_address = _address(name.strip("[]")) is not None
        return name in self._names or (self._any_address and is_address)


def is_everywhere(host: str) -> bool:
    """Whether an address stands for all of the machine's."""
    return (address := _address(host)) is not None and address.is_unspecified


def is_loopback(host: str) -> bool:
    return host == "localhost" or ((address := _address(host)) is not None and address.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class CallerCheck:
    """Refuses foreign hosts, foreign pages and large bodies; adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Hosts, body_bytes: int):
        self._app, self._hosts, self._body_bytes = app, hosts, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no web sockets here, and nothing to do at start and end
        received = 0

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        async def receive_bounded() -> Message:
            """Receive a body that is refused as soon as it proves too large."""
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            self._check_size(received)
            return message

        try:
            self._check(Request(scope))
        except HTTPException as refusal:
            answer = JSONResponse({"detail": refusal.detail}, refusal.status_code, _CLOSE)
            await answer(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive_bounded, send_with_headers)

    def _check(self, request: Request) -> None:
        """Raise what is wrong with a request before its body is read."""
        headers = request.headers
        hosts = [host.lower() for host in headers.getlist("host")]
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            raise HTTPException(400, "the request needs one Host header, such as localhost")
        if not self._hosts.allow(match["name"]):
            raise HTTPException(
                421,
                f"this server does not answer to the name {match['name']!r}; open it as "
                "127.0.0.1 or localhost, or start it with --allow-host",
            )
        origins = {origin.lower() for origin in headers.getlist("origin")}
        # What a browser says of the page that asks; following a link to the page is fine.
        is_own = headers.get("sec-fetch-site", "none").lower() in ("same-origin", "none")
        follows_link = headers.get("sec-fetch-mode", "").lower() == "navigate"
        is_page = request.method == "GET" and request.scope["path"] in ("/", "/cite")
        if not origins <= {f"http://{hosts[0]}", f"https://{hosts[0]}"} or not (
            is_own or (is_page and follows_link)
        ):
            raise HTTPException(403, "the request comes from another page than this server's own")
        declared = headers.get("content-length", "")
        self._check_size(int(declared) if declared.isdigit() else 0)

    def _check_size(self, size: int) -> None:
        if size > self._body_bytes:
            detail = f"the request is larger than {self._body_bytes} bytes"
            raise HTTPException(413, detail, _CLOSE)


# The shapes of answers, as OpenAPI shows them, and refusals by their status.


class ModelList(BaseModel):
    """What can be asked for."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    models: list[Description]
    limits: dict[Literal["text_characters", "tokens"], int]
    """What one text may have at most."""
    example: dict[Literal["model", "text"], str] | None
    """The analysis that the page shows first, if any."""


class Problem(BaseModel):
    """What went wrong, in one line."""

    detail: str


_REFUSED = {
    400: "The Host header or the body cannot be read.",
    403: "The request comes from another site's page.",
    404: "There is no such analysis, or it has been dropped.",
    409: "There is no result yet, or it failed.",
    410: "It was cancelled.",
    413: "The body is too large.",
    421: "The Host header names another server.",
    422: "The request does not have the right form.",
    429: "Too many analyses are waiting; Retry-After says when to try again.",
}


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declare refusals by status."""
    return {status: {"model": Problem, "description": _REFUSED[status]} for status in statuses}


_SUBMITTED = _refusals(422, 429)
_SUBMITTED[429]["headers"] = {
    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds.", "required": True}
}
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_RESULTS = {
    200: {
        "content": _BYTES | {"application/json": {"schema": {"type": "object"}}},
        "description": "Maps, an explanation or a cosine; of a citation what its page shows.",
    },
    **_refusals(404, 409, 410),
}


async def _invalid(_: Request, error: Any) -> JSONResponse:
    """Answer a body that is not JSON, or not of the right form."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return JSONResponse({"detail": "the body is not JSON"}, 400)
    # Behind a field's name come the kinds that it could have been.
    where = next((str(part) for part in first["loc"] if part != "body"), "the body")
    said = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    if first["type"] == "string_pattern_mismatch":
        said = "the text is empty; give at least one word"
    return JSONResponse({"detail": one_line(f"{where}: {said}")}, 422)


async def _broken(_: Request, error: Exception) -> JSONResponse:
    detail = f"the server failed ({type(error).__name__}); its terminal says more"
    return JSONResponse({"detail": detail}, 500)


# The page and its interface: addresses to calls.


def create_app(
    models: ServedModels, jobs: Jobs, limits: Limits, hosts: Hosts, example: Question | None = None
) -> ASGIApp:
    """Build the whole server but its socket. The models must have been described.

    The page opens on the `example`.
    """
    app = FastAPI(
        title="NormLens",
        version=__version__,
        summary="Norm-based attribution maps of a text, one analysis at a time.",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=_refusals(400, 403, 413, 421),
        generate_unique_id_function=lambda route: route.name,
        exception_handlers={
            RequestValidationError: _invalid,
            Exception: _broken,
        },
    )
    # Read once; no request ever leads to a file.
    html, front_end, citing = shell(), script(), pages.citing()

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(html)

    files = {"viewer.js": front_end, "cite.css": citing[1], "cite.js": citing[2]}

    @app.get("/cite", include_in_schema=False)
    async def cite_page() -> HTMLResponse:
        return HTMLResponse(citing[0])

    @app.get("/static/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        kind = "css" if name.endswith(".css") else "javascript"
        return Response(files[name], media_type=f"text/{kind}")

    @app.get("/api/models", name="models")
    async def list_models() -> ModelList:
        """Models and limits."""
        return ModelList(
            models=models.listed(),
            limits={"text_characters": limits.text_characters, "tokens": limits.tokens},
            example={"model": example.model, "text": example.text} if example else None,
        )

    for kind in KINDS:

        async def submit(asked: Question) -> Job:
            return jobs.submit(asked, models.descriptions[asked.model].layers)

        submit.__annotations__["asked"] = bounded(kind, models.names, limits.text_characters)
        about: Any = {"name": kind.operation, "description": kind.__doc__, "status_code": 202}
        app.post(f"/api/{kind.address}", responses=_SUBMITTED, **about)(submit)

    def existing(job: Job | None) -> Job:
        if job is None:
            detail = "there is no such analysis, or its result was dropped; ask for it again"
            raise HTTPException(404, detail)
        return job

    @app.get("/api/analyses/{id}", responses=_refusals(404))
    async def status(id: str) -> Job:
        """How far it is."""
        return existing(jobs.find(id))

    @app.delete("/api/analyses/{id}", responses=_refusals(404))
    async def cancel(id: str) -> Job:
        """Stop an analysis, waiting or running; a finished one stays as it is."""
        return existing(jobs.cancel(id))

    @app.get("/api/analyses/{id}/result", response_class=Response, responses=_RESULTS)
    async def result(id: str) -> Response:
        """What an analysis of any kind gave, as the page reads it."""
        job = existing(jobs.find(id))
        if job.state == CANCELLED:
            raise HTTPException(410, "the analysis was cancelled")
        if job.state != DONE:
            why = job.error or f"the analysis is {job.state}"
            raise HTTPException(409, f"there is no result: {why}")
        kind = "json" if isinstance(job.question, CitationRequest) else "octet-stream"
        return Response(job.result, media_type=f"application/{kind}")

    return CallerCheck(app, hosts, limits.body_bytes)
