"""The shapes of requests and answers, as OpenAPI shows them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from normlens.option_fields import options_of
from normlens.options import AnalysisOptions
from normlens.serve.limits import Limits

#: The one option of an analysis that a visitor may choose.
_RULE = options_of(AnalysisOptions)["nonlinearity"]
# White space of Python, of Rust's regular expressions and of ECMAScript's differ a little.
_SOMETHING = r"[^\s\x1c-\x1f\x85\ufeff]"


class ModelInfo(BaseModel):
    """A model that can be analysed."""

    name: str
    family: str = Field(description="Its architecture, such as bert.")
    layers: int = Field(ge=1)
    scopes: list[str]
    causal: bool
    max_tokens: int | None = Field(description="The longest text its positions allow, if any.")
    loaded: bool = Field(description="Whether it is in memory; the first analysis loads it.")


class LimitInfo(BaseModel):
    """What one text may be at most."""

    text_characters: int = Field(ge=1)
    tokens: int = Field(ge=1)


class ModelList(BaseModel):
    """What can be asked for."""

    models: list[ModelInfo]
    limits: LimitInfo


class AnalysisRequest(BaseModel):
    """A text, or a pair of texts, for one of the models."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    text: str = Field(pattern=_SOMETHING)
    pair: str | None = Field(default=None, pattern=_SOMETHING)
    rule: str = Field(default=AnalysisOptions.nonlinearity, description=_RULE.help)


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


def complete(schema: dict[str, Any], names: list[str], rules: list[str], limits: Limits) -> None:
    """Write into the OpenAPI schema what is known only when the server starts."""
    schemas = schema["components"]["schemas"]
    request = schemas["AnalysisRequest"]["properties"]
    request["model"]["enum"] = names
    request["rule"]["enum"] = rules
    request["text"]["maxLength"] = limits.text_characters
    request["pair"]["anyOf"][0]["maxLength"] = limits.text_characters
    # FastAPI declares its own form of 422 wherever an address has a part to fill in; any id is
    # well-formed here, and an unknown one is 404.
    for path in schema["paths"].values():
        for operation in path.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
