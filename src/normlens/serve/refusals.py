"""Refusals: how they are declared in the schema, and how each is said in one line."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.routing import Match, Route

from normlens.errors import one_line
from normlens.serve.schemas import Problem


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
