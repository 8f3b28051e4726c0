"""The shapes of requests and answers, as OpenAPI shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from normlens.cosine_options import CosineOptions
from normlens.explain_options import LINEAR_RULES, ExplainOptions
from normlens.nonlinearities import RULES
from normlens.option_fields import options_of
from normlens.options import AnalysisOptions
from normlens.serve.limits import Limits

#: The options of an analysis that a visitor may choose.
_RULE, _HEADS = (options_of(AnalysisOptions)[name] for name in ("nonlinearity", "heads"))
_LINEAR_RULE = options_of(ExplainOptions)["nonlinearity"]
_LARGEST = 10_000_000  # of token ids and positions
# To JSON 3.0 is a whole number, too.
_WHOLE = BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)
_Number = Annotated[int, Field(ge=0, le=_LARGEST), _WHOLE]
_Target = Annotated[str, Field(min_length=1, max_length=100)] | _Number
_Place = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST), _WHOLE]
# White space of Python, of Rust's regular expressions and of ECMAScript's differ a little.
_SOMETHING = r"[^\s\x1c-\x1f\x85\ufeff]"


_TARGET_TEXT = "What an encoder–decoder's decoder reads; without it the model generates it."


class ModelInfo(BaseModel):
    """A model that can be analysed."""

    name: str
    family: str = Field(description="Its architecture, such as bert.")
    layers: int = Field(ge=1)
    scopes: list[str]
    causal: bool
    max_tokens: int | None = Field(description="The longest text its positions allow, if any.")
    head: str | None = Field(
        description="The class with the head that it has, without which nothing can be explained."
    )
    two_stacks: bool = Field(description="Whether it is an encoder–decoder.")
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


class AnalysisRequest(BaseModel):
    """A text, or a pair of texts, for one of the models."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    text: str = Field(pattern=_SOMETHING)
    pair: str | None = Field(default=None, pattern=_SOMETHING)
    target_text: str | None = Field(default=None, pattern=_SOMETHING, description=_TARGET_TEXT)
    rule: str = Field(default=AnalysisOptions.nonlinearity, description=_RULE.help)
    heads: bool = Field(default=False, description=_HEADS.help)


class ExplanationRequest(BaseModel):
    """A text, or a pair of texts, and what to explain: by default what the model says."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    text: str = Field(pattern=_SOMETHING)
    pair: str | None = Field(default=None, pattern=_SOMETHING)
    target_text: str | None = Field(default=None, pattern=_SOMETHING, description=_TARGET_TEXT)
    target: _Target | None = Field(
        default=None,
        description="A word, a label, or the number of one; of an encoder–decoder, a token of "
        "the target text: a word, or its place from 0.",
    )
    contrast: _Target | None = Field(default=None, description="Why the target and not this.")
    position: _Place | None = Field(
        default=None, description="Where the score is read, from 0, or from the end if negative."
    )
    rule: str = Field(default=ExplainOptions.nonlinearity, description=_LINEAR_RULE.help)


class CosineRequest(BaseModel):
    """Two texts for one of the models."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    text: str = Field(pattern=_SOMETHING)
    pair: str = Field(pattern=_SOMETHING)
    rule: str = Field(default=CosineOptions.nonlinearity, description=_LINEAR_RULE.help)


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


#: The rules that each kind of request may choose from.
RULES_OF: dict[type[BaseModel], tuple[str, ...]] = {
    AnalysisRequest: RULES,
    ExplanationRequest: LINEAR_RULES,
    CosineRequest: LINEAR_RULES,
}


def complete(schema: dict[str, Any], names: list[str], limits: Limits) -> None:
    """Write into the OpenAPI schema what is known only when the server starts."""
    schemas = schema["components"]["schemas"]
    for kind, rules in RULES_OF.items():
        request = schemas[kind.__name__]["properties"]
        request["model"]["enum"] = names
        request["rule"]["enum"] = list(rules)
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
