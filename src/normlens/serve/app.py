"""The server's page and interface: who may ask, addresses to calls, one-line refusals."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field
from starlette.datastructures import MutableHeaders
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from normlens._version import __version__
from normlens.errors import InputError, one_line, valid_choice
from normlens.options import NOT_LINEAR, SHAPLEY
from normlens.serve.jobs import (
    CANCELLED,
    DONE,
    AnalysisRequest,
    CosineRequest,
    ExplanationRequest,
    Job,
    Jobs,
    Limits,
    Question,
    QueueFullError,
)
from normlens.serve.models import Description, ServedModels
from normlens.viewer.pages import script, shell

# Who may talk to the server, and how much they may say.
#
# A page anywhere on the web can send requests to 127.0.0.1 from its visitor's browser, and can
# give its own name that address (DNS rebinding). Neither gets through: the Host header must name
# this machine, and a page's requests must come from the page that this server sent.


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


@dataclass(frozen=True)
class Hosts:
    """Names of this server that a Host header may hold, whatever the port.

    The port is left open for tunnels (``ssh -L``); the Origin must match it exactly.
    """

    names: frozenset[str]
    any_address: bool = False

    @classmethod
    def of(cls, host: str, also: Iterable[str] = ()) -> Hosts:
        """Collect the names that fit the server's address, and others that were allowed."""
        names = {*LOOPBACK, *(_written(name) for name in also)}
        if not is_everywhere(host):
            return cls(frozenset(names | {_written(host)}))
        # A browser sends an address as Host only to a page it found there, so any will do.
        return cls(frozenset(names | {socket.gethostname().lower()}), any_address=True)

    def allow(self, name: str) -> bool:
        return name in self.names or (self.any_address and _is_address(name.strip("[]")))


def is_everywhere(host: str) -> bool:
    """Whether an address stands for all of the machine's."""
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _written(host: str) -> str:
    """Write a host as it appears in a URL."""
    return f"[{host.lower()}]" if ":" in host and "[" not in host else host.lower()


class Guard:
    """Refuses foreign hosts, foreign pages and large bodies; adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Hosts, body_bytes: int):
        self._app, self._hosts, self._body_bytes = app, hosts, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no web sockets here, and nothing to do at start and end

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(Request(scope))
        except HTTPException as refusal:
            answer = JSONResponse({"detail": refusal.detail}, refusal.status_code, _CLOSE)
            await answer(scope, receive, send_guarded)
        else:
            await self._app(scope, self._bounded(receive), send_guarded)

    def _check(self, request: Request) -> None:
        """Raise what is wrong with a request before its body is read."""
        hosts = [host.lower() for host in request.headers.getlist("host")]
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            raise HTTPException(400, "the request needs one Host header, such as localhost")
        if not self._hosts.allow(match["name"]):
            raise HTTPException(
                421,
                f"this server does not answer to the name {match['name']!r}; open it as "
                "127.0.0.1 or localhost, or start it with --allow-host",
            )
        this_server = {f"http://{hosts[0]}", f"https://{hosts[0]}"}
        origins = {origin.lower() for origin in request.headers.getlist("origin")}
        if _is_foreign(request) or not origins <= this_server:
            raise HTTPException(403, "the request comes from another page than this server's own")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._body_bytes:
            raise self._too_large()

    def _bounded(self, receive: Receive) -> Receive:
        """Receive a body that is refused as soon as it proves too large."""
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise self._too_large()
            return message

        return receive_bounded

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the request is larger than {self._body_bytes} bytes", _CLOSE)


def _is_foreign(request: Request) -> bool:
    """Whether a browser says that another site asks; following a link to the page is fine."""
    if request.headers.get("sec-fetch-site", "none").lower() in ("same-origin", "none"):
        return False
    follows_link = request.headers.get("sec-fetch-mode", "").lower() == "navigate"
    return not (request.method == "GET" and request.scope["path"] == "/" and follows_link)


# The shapes of answers, as OpenAPI shows them.


class ModelInfo(Description):
    """A model that can be analysed."""

    loaded: bool = Field(description="Whether it is in memory; the first analysis loads it.")


class LimitInfo(BaseModel):
    """What one text may be at most."""

    text_characters: int = Field(ge=1)
    tokens: int = Field(ge=1)


class Example(BaseModel):
    """The analysis that the page opens on."""

    model: str
    text: str


class ModelList(BaseModel):
    """What can be asked for."""

    models: list[ModelInfo]
    limits: LimitInfo
    example: Example | None = Field(description="What the page shows first, if anything.")


class Submitted(BaseModel):
    """The name by which an analysis is asked about."""

    id: str


class Status(BaseModel):
    """Where an analysis stands."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    position: int = Field(ge=0, description="Analyses ahead of this one.")
    layers_done: int = Field(ge=0)
    layers: int = Field(ge=1)
    error: str | None = Field(description="Why it failed, in one line.")


class Problem(BaseModel):
    """What went wrong, in one line."""

    detail: str


# Refusals: how they are declared in the schema, and how each is said in one line.


def problems(**why: str) -> dict[int | str, dict[str, Any]]:
    """Declare refusals by status: ``problems(_404="…")``."""
    return {
        int(status.lstrip("_")): {"model": Problem, "description": text}
        for status, text in why.items()
    }


def _link(operation: str, what: str) -> dict[str, Any]:
    return {
        "operationId": operation,
        "parameters": {"id": "$response.body#/id"},
        "description": what,
    }


EVERYWHERE = problems(
    _400="The Host header or the body cannot be read.",
    _403="The request comes from another site's page.",
    _413="The body is too large.",
    _421="The Host header names another server.",
)
SUBMITTED: dict[int | str, dict[str, Any]] = {
    202: {
        "links": {
            "status": _link("status", "Ask how far it is."),
            "result": _link("result", "Fetch what it gave when it is done."),
            "cancel": _link("cancel", "Stop it."),
        }
    },
    **problems(
        _413="The body or the text is too large.",
        _422="The request does not have the right form.",
        _429="Too many analyses are waiting; Retry-After says when to try again.",
    ),
}
SUBMITTED[429]["headers"] = {
    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds.", "required": True}
}
NO_SUCH_ANALYSIS = problems(_404="There is no such analysis, or it has been dropped.")


def say_one_line(app: FastAPI) -> None:
    """Answer every refusal with {"detail": one line}."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return JSONResponse({"detail": "the body is not JSON"}, 400)
        # Behind a field's name come the kinds that it could have been.
        where = next((str(part) for part in first["loc"] if part != "body"), "the body")
        if first["type"] == "string_pattern_mismatch":
            detail = f"{where}: the text is empty; give at least one word"
        else:
            detail = f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        return JSONResponse({"detail": one_line(detail)}, 422)

    @app.exception_handler(405)
    async def not_allowed(request: Request, _: Exception) -> JSONResponse:
        # Left alone, only the first method of an address would be listed.
        methods = {
            method
            for route in app.routes
            if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
            for method in route.methods or ()
        }
        allowed = ", ".join(sorted(methods))
        detail = f"{request.method} is not possible here; use {allowed}"
        return JSONResponse({"detail": detail}, 405, {"Allow": allowed})

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> JSONResponse:
        detail = f"the server failed ({type(error).__name__}); its terminal says more"
        return JSONResponse({"detail": detail}, 500)


def _complete(schema: dict[str, Any], names: list[str], limits: Limits) -> None:
    """Write into the OpenAPI schema what is known only when the server starts."""
    schemas = schema["components"]["schemas"]
    for kind in (AnalysisRequest, ExplanationRequest, CosineRequest):
        request = schemas[kind.__name__]["properties"]
        request["model"]["enum"] = names
        request["rule"]["enum"] = list(kind.rules)
        for name in ("text", "pair", "target_text"):
            if (text := request.get(name)) is not None:
                (text["anyOf"][0] if "anyOf" in text else text)["maxLength"] = (
                    limits.text_characters
                )
    # FastAPI declares its own form of 422 wherever an address has a part to fill in; any id is
    # well-formed here, and an unknown one is 404.
    for path in schema["paths"].values():
        for operation in path.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)


# The page and its interface: addresses to calls.


_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

_UNKNOWN = "there is no such analysis, or its result was dropped; ask for it again"


def create_app(
    models: ServedModels,
    jobs: Jobs,
    limits: Limits,
    hosts: Hosts,
    example: Question | None = None,
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
        responses=EVERYWHERE,
    )
    say_one_line(app)
    _add_page(app)
    _add_models(app, models, limits, example)
    _add_api(app, models, jobs, limits)
    _complete(app.openapi(), list(models.names), limits)
    return Guard(app, hosts, limits.body_bytes)


def _add_page(app: FastAPI) -> None:
    # Read once; no request ever leads to a file.
    html, front_end = shell(mode="serve"), script()

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(html)

    @app.get("/static/viewer.js", include_in_schema=False)
    async def viewer() -> Response:
        return Response(front_end, media_type="text/javascript")


def _add_models(
    app: FastAPI, models: ServedModels, limits: Limits, example: Question | None
) -> None:
    @app.get("/api/models", operation_id="models", summary="Models and limits")
    async def list_models() -> ModelList:
        infos = [
            ModelInfo(**model.model_dump(), loaded=models.is_loaded(model.name))
            for model in models.descriptions.values()
        ]
        shown = LimitInfo(text_characters=limits.text_characters, tokens=limits.tokens)
        first = None if example is None else Example(model=example.model, text=example.text)
        return ModelList(models=infos, limits=shown, example=first)


def _add_api(app: FastAPI, models: ServedModels, jobs: Jobs, limits: Limits) -> None:
    def submitted(question: Question) -> Submitted:
        _check(question, models, limits)
        try:
            job = jobs.submit(question, models.descriptions[question.model].layers)
        except QueueFullError as error:
            headers = {"Retry-After": str(error.seconds)}
            raise HTTPException(429, str(error), headers) from error
        return Submitted(id=job.id)

    def submission(path: str, operation: str, summary: str) -> Any:
        return app.post(
            path,
            operation_id=operation,
            summary=summary,
            status_code=202,
            responses=SUBMITTED,
        )

    @submission("/api/analyses", "submit", "Ask for the maps of a text")
    async def submit(asked: AnalysisRequest) -> Submitted:
        return submitted(asked)

    @submission("/api/explanations", "explain", "Ask why the model says what it says")
    async def explain(asked: ExplanationRequest) -> Submitted:
        return submitted(asked)

    @submission("/api/cosines", "compare", "Ask which tokens made the cosine of two texts")
    async def compare(asked: CosineRequest) -> Submitted:
        return submitted(asked)

    @app.get(
        "/api/analyses/{id}",
        operation_id="status",
        summary="How far it is",
        responses=NO_SUCH_ANALYSIS,
    )
    async def status(id: str) -> Status:
        return _status(jobs.find(id))

    @app.delete(
        "/api/analyses/{id}",
        operation_id="cancel",
        summary="Stop an analysis, waiting or running; a finished one stays as it is",
        responses=NO_SUCH_ANALYSIS,
    )
    async def cancel(id: str) -> Status:
        return _status(jobs.cancel(id))

    @app.get(
        "/api/analyses/{id}/maps",
        operation_id="maps",
        summary="The maps, as the page reads them",
        response_class=Response,
        responses={
            200: {"content": _BYTES, "description": "The maps of one text."},
            **NO_SUCH_ANALYSIS,
            **problems(_409="There are no maps yet, or it failed.", _410="It was cancelled."),
        },
    )
    async def maps(id: str) -> Response:
        job = _existing(jobs.find(id))
        if not isinstance(job.question, AnalysisRequest):
            raise HTTPException(409, f"there are no maps: this is {job.question.answer} (result)")
        return _result(job)

    @app.get(
        "/api/analyses/{id}/result",
        operation_id="result",
        summary="What an analysis of any kind gave, as the page reads it",
        response_class=Response,
        responses={
            200: {"content": _BYTES, "description": "Maps, an explanation or a cosine."},
            **NO_SUCH_ANALYSIS,
            **problems(_409="There is no result yet, or it failed.", _410="It was cancelled."),
        },
    )
    async def result(id: str) -> Response:
        return _result(_existing(jobs.find(id)))


def _result(job: Job) -> Response:
    """Answer with what an analysis gave, or say why there is nothing."""
    if job.state == CANCELLED:
        raise HTTPException(410, "the analysis was cancelled")
    if job.state != DONE:
        why = "the analysis failed" if job.error else f"the analysis is {job.state}"
        what = "are no maps" if isinstance(job.question, AnalysisRequest) else "is no result"
        raise HTTPException(409, f"there {what}: {job.error or why}")
    return Response(job.result, media_type="application/octet-stream")


def _check(question: Question, models: ServedModels, limits: Limits) -> None:
    """Raise what is wrong with a question beyond its form."""
    try:
        valid_choice(question.model, models.names, "model")
        if question.rule == SHAPLEY and SHAPLEY not in question.rules:
            raise InputError(NOT_LINEAR)
        valid_choice(question.rule, question.rules, "rule")
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    longest = max(map(len, question.texts))
    if longest > limits.text_characters:
        raise HTTPException(
            413,
            f"the text has {longest} characters and at most {limits.text_characters} are taken; "
            "shorten it",
        )


def _existing(job: Job | None) -> Job:
    if job is None:
        raise HTTPException(404, _UNKNOWN)
    return job


def _status(job: Job | None) -> Status:
    return Status.model_validate(_existing(job), from_attributes=True)
