"""The page and its interface: addresses to calls."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import HTMLResponse
from starlette.types import ASGIApp

from normlens._version import __version__
from normlens.errors import InputError, valid_choice
from normlens.nonlinearities import NOT_LINEAR, SHAPLEY
from normlens.serve.jobs import (
    CANCELLED,
    DONE,
    CosineQuestion,
    Job,
    Jobs,
    Question,
    QueueFullError,
    WhyQuestion,
)
from normlens.serve.limits import Limits
from normlens.serve.models import ServedModels
from normlens.serve.refusals import (
    EVERYWHERE,
    NO_SUCH_ANALYSIS,
    SUBMITTED,
    problems,
    say_one_line,
)
from normlens.serve.schemas import (
    RULES_OF,
    AnalysisRequest,
    CosineRequest,
    Example,
    ExplanationRequest,
    LimitInfo,
    ModelInfo,
    ModelList,
    Status,
    Submitted,
    complete,
)
from normlens.serve.security import Guard, Hosts
from normlens.viewer.page import script, shell

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
