"""The page and its interface: addresses to calls."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from normlens._version import __version__
from normlens.errors import InputError, one_line, valid_choice
from normlens.nonlinearities import RULES
from normlens.serve.jobs import CANCELLED, DONE, Job, Jobs, Question, QueueFullError
from normlens.serve.limits import Limits
from normlens.serve.models import ServedModels
from normlens.serve.schemas import (
    AnalysisRequest,
    LimitInfo,
    ModelInfo,
    ModelList,
    Problem,
    Status,
    Submitted,
    complete,
)
from normlens.serve.security import Guard, Hosts
from normlens.viewer.page import script, shell

_UNKNOWN = "there is no such analysis, or its result was dropped; ask for it again"
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _problems(**why: str) -> dict[int | str, dict[str, Any]]:
    """Declare refusals by status: ``_problems(_404="…")``."""
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


_EVERYWHERE = _problems(
    _400="The Host header or the body cannot be read.",
    _403="The request comes from another site's page.",
    _413="The body is too large.",
    _421="The Host header names another server.",
)
_SUBMITTED: dict[int | str, dict[str, Any]] = {
    202: {
        "links": {
            "status": _link("status", "Ask how far it is."),
            "maps": _link("maps", "Fetch its maps when it is done."),
            "cancel": _link("cancel", "Stop it."),
        }
    },
    **_problems(
        _413="The body or the text is too large.",
        _422="The request does not have the right form.",
        _429="Too many analyses are waiting; Retry-After says when to try again.",
    ),
}
_SUBMITTED[429]["headers"] = {
    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds.", "required": True}
}
_NO_SUCH_ANALYSIS = _problems(_404="There is no such analysis, or it has been dropped.")


def create_app(models: ServedModels, jobs: Jobs, limits: Limits, hosts: Hosts) -> ASGIApp:
    """Build the whole server but its socket. The models must have been described."""
    app = FastAPI(
        title="NormLens",
        version=__version__,
        summary="Norm-based attribution maps of a text, one analysis at a time.",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=_EVERYWHERE,
    )
    _say_one_line(app)
    _add_page(app)
    _add_api(app, models, jobs, limits)
    complete(app.openapi(), list(models.names), list(RULES), limits)
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


def _add_api(app: FastAPI, models: ServedModels, jobs: Jobs, limits: Limits) -> None:
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
                loaded=models.is_loaded(model.name),
            )
            for model in models.descriptions.values()
        ]
        shown = LimitInfo(text_characters=limits.text_characters, tokens=limits.tokens)
        return ModelList(models=infos, limits=shown)

    @app.post(
        "/api/analyses",
        operation_id="submit",
        summary="Ask for the maps of a text",
        status_code=202,
        responses=_SUBMITTED,
    )
    async def submit(asked: AnalysisRequest) -> Submitted:
        question = _question(asked, models, limits)
        try:
            job = jobs.submit(question, models.descriptions[question.model].layers)
        except QueueFullError as error:
            headers = {"Retry-After": str(error.seconds)}
            raise HTTPException(429, str(error), headers) from error
        return Submitted(id=job.id)

    @app.get(
        "/api/analyses/{id}",
        operation_id="status",
        summary="How far it is",
        responses=_NO_SUCH_ANALYSIS,
    )
    async def status(id: str) -> Status:
        return _status(jobs.find(id))

    @app.delete(
        "/api/analyses/{id}",
        operation_id="cancel",
        summary="Stop an analysis, waiting or running; a finished one stays as it is",
        responses=_NO_SUCH_ANALYSIS,
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
            **_NO_SUCH_ANALYSIS,
            **_problems(_409="There are no maps yet, or it failed.", _410="It was cancelled."),
        },
    )
    async def maps(id: str) -> Response:
        job = _existing(jobs.find(id))
        if job.state == CANCELLED:
            raise HTTPException(410, "the analysis was cancelled")
        if job.state != DONE:
            why = "the analysis failed" if job.error else f"the analysis is {job.state}"
            raise HTTPException(409, f"there are no maps: {job.error or why}")
        return Response(job.result, media_type="application/octet-stream")


def _question(asked: AnalysisRequest, models: ServedModels, limits: Limits) -> Question:
    """Turn a request into a question, or raise what is wrong with it."""
    try:
        valid_choice(asked.model, models.names, "model")
        valid_choice(asked.rule, RULES, "rule")
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    longest = max(len(asked.text), len(asked.pair or ""))
    if longest > limits.text_characters:
        raise HTTPException(
            413,
            f"the text has {longest} characters and at most {limits.text_characters} are taken; "
            "shorten it",
        )
    return Question(asked.model, asked.text, asked.pair, asked.rule)


def _existing(job: Job | None) -> Job:
    if job is None:
        raise HTTPException(404, _UNKNOWN)
    return job


def _status(job: Job | None) -> Status:
    return Status.model_validate(_existing(job), from_attributes=True)


def _say_one_line(app: FastAPI) -> None:
    """Answer every refusal with {"detail": one line}."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return JSONResponse({"detail": "the body is not JSON"}, 400)
        where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
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
