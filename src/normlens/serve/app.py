"""The server's page and interface: addresses to calls, one-line refusals, limits."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from normlens._version import __version__
from normlens.errors import InputError, one_line, valid_choice
from normlens.options import NOT_LINEAR, SHAPLEY
from normlens.serve.jobs import (
    CANCELLED,
    DONE,
    RULES_OF,
    AnalysisRequest,
    CosineQuestion,
    CosineRequest,
    Example,
    ExplanationRequest,
    Job,
    Jobs,
    LimitInfo,
    ModelInfo,
    ModelList,
    Problem,
    Question,
    QueueFullError,
    Status,
    Submitted,
    WhyQuestion,
    complete,
)
from normlens.serve.limits import Guard, Hosts, Limits
from normlens.serve.models import ServedModels
from normlens.viewer.pages import script, shell

# Limits on the server's connections: their number, and how long each may keep it waiting.
#
# A client that sends half a request, or does not take its answer, holds a descriptor for as long
# as it likes; a few hundred of them would shut everybody else out. So connections are counted, and
# each has to get on.


_log = logging.getLogger("normlens.serve")
_FULL = b'{"detail": "there are too many connections; try again in a moment"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Descriptors that are left for models, pipes and files.
_RESERVE = 64
#: Bytes that a client has to take per second while an answer waits for it.
_SLOWEST = 1024
_SILENCE = 60.0  # seconds between two lines about the same shortage


def most_connections(limits: Limits) -> int:
    """Limit connections as set, to fewer where the process may not open that many descriptors."""
    try:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = most - len(os.listdir("/proc/self/fd")) - _RESERVE
    except (ImportError, OSError):
        return limits.connections
    return max(1, min(limits.connections, free))


def protocol_class(limits: Limits) -> type[H11Protocol]:
    """Make the protocol class, as uvicorn takes it, of a server with these limits."""
    most = most_connections(limits)

    class LimitedProtocol(Connection):
        connections_limit = most
        request_seconds = limits.request_seconds
        stall_seconds = limits.stall_seconds

    return LimitedProtocol


class Connection(H11Protocol):
    """One client's connection, which ends when the client keeps the server waiting."""

    connections_limit: int
    request_seconds: float
    stall_seconds: float
    _request_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.connections_limit:
            transport.write(_REFUSAL)
            transport.close()
            return
        # Any byte that the client does not take is noticed at once.
        transport.set_write_buffer_limits(high=0)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_request_timer")
        self._stop("_stall_timer")
        super().connection_lost(exc)

    # Requests: the whole of one within a time, however it trickles -------------------------------

    def data_received(self, data: bytes) -> None:
        if self._request_timer is None and self.conn.their_state is h11.IDLE:
            self._expect_request()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop("_request_timer")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        begun = bool(self.conn.trailing_data[0])  # came with the request before
        if begun and self._request_timer is None and self.conn.their_state is h11.IDLE:
            self._expect_request()

    def _expect_request(self) -> None:
        self._request_timer = self.loop.call_later(self.request_seconds, self.transport.abort)

    # Answers: some of what waits is taken in every while -----------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._expect_progress()

    def resume_writing(self) -> None:
        self._stop("_stall_timer")
        super().resume_writing()

    def _expect_progress(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.stall_seconds, self._check_progress, waiting)

    def _check_progress(self, before: int) -> None:
        taken = before - self.transport.get_write_buffer_size()
        if taken < _SLOWEST * self.stall_seconds:
            self.transport.abort()
        else:
            self._expect_progress()

    def _stop(self, timer: str) -> None:
        handle = getattr(self, timer)
        if handle is not None:
            handle.cancel()
            setattr(self, timer, None)


class QuietServer(uvicorn.Server):
    """A server whose log stays short while descriptors are short."""

    async def startup(self, sockets: Any = None) -> None:
        asyncio.get_running_loop().set_exception_handler(ShortageLog())
        await super().startup(sockets)


class ShortageLog:
    """An event loop's handler of errors: a shortage is one line a minute, not one per attempt.

    asyncio tries to accept over and over, and would write a traceback each time.
    """

    def __init__(self) -> None:
        self._said = -_SILENCE

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ValueError) and "_start_serving" in repr(context.get("handle")):
            return  # the attempt after a shortage comes too late: the server has closed its socket
        if not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
            loop.default_exception_handler(context)
            return
        now = time.monotonic()
        if now - self._said >= _SILENCE:
            self._said = now
            _log.warning(
                "no connection can be accepted (%s); close some, or raise `ulimit -n`",
                error.strerror,
            )


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


# The page and its interface: addresses to calls.


_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
Request_ = AnalysisRequest | ExplanationRequest | CosineRequest

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
    complete(app.openapi(), list(models.names), limits)
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
            ModelInfo(
                name=model.name,
                family=model.family,
                layers=model.layers,
                scopes=list(model.scopes),
                causal=model.causal,
                max_tokens=model.max_tokens,
                head=model.head,
                two_stacks=model.two_stacks,
                loaded=models.is_loaded(model.name),
            )
            for model in models.descriptions.values()
        ]
        shown = LimitInfo(text_characters=limits.text_characters, tokens=limits.tokens)
        first = None if example is None else Example(model=example.model, text=example.text)
        return ModelList(models=infos, limits=shown, example=first)


def _add_api(app: FastAPI, models: ServedModels, jobs: Jobs, limits: Limits) -> None:
    def submitted(kind: type[Question], asked: Request_) -> Submitted:
        _check(asked, models, limits)
        question = kind(**asked.model_dump())
        try:
            job = jobs.submit(question, models.descriptions[question.model].layers)
        except QueueFullError as error:
            headers = {"Retry-After": str(error.seconds)}
            raise HTTPException(429, str(error), headers) from error
        return Submitted(id=job.id)

    @app.post(
        "/api/analyses",
        operation_id="submit",
        summary="Ask for the maps of a text",
        status_code=202,
        responses=SUBMITTED,
    )
    async def submit(asked: AnalysisRequest) -> Submitted:
        return submitted(Question, asked)

    @app.post(
        "/api/explanations",
        operation_id="explain",
        summary="Ask why the model says what it says",
        status_code=202,
        responses=SUBMITTED,
    )
    async def explain(asked: ExplanationRequest) -> Submitted:
        return submitted(WhyQuestion, asked)

    @app.post(
        "/api/cosines",
        operation_id="compare",
        summary="Ask which tokens made the cosine of two texts",
        status_code=202,
        responses=SUBMITTED,
    )
    async def compare(asked: CosineRequest) -> Submitted:
        return submitted(CosineQuestion, asked)

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
        if job.question.answer != Question.answer:
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
        what = "are no maps" if job.question.answer == Question.answer else "is no result"
        raise HTTPException(409, f"there {what}: {job.error or why}")
    return Response(job.result, media_type="application/octet-stream")


def _check(asked: Request_, models: ServedModels, limits: Limits) -> None:
    """Raise what is wrong with a request beyond its form."""
    try:
        valid_choice(asked.model, models.names, "model")
        if asked.rule == SHAPLEY and SHAPLEY not in RULES_OF[type(asked)]:
            raise InputError(NOT_LINEAR)
        valid_choice(asked.rule, RULES_OF[type(asked)], "rule")
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    target_text = None if isinstance(asked, CosineRequest) else asked.target_text
    longest = max(len(text or "") for text in (asked.text, asked.pair, target_text))
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
