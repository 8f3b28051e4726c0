"""What an explanation may be asked for: one set of options for Python, runs, server and shell.

Nothing here needs torch, so that the command line can be built of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from normlens.errors import InputError, OptionError, valid_choice
from normlens.nonlinearities import IG, NOT_LINEAR, RULES, SHAPLEY
from normlens.option_fields import Option
from normlens.options import at_least_one
from normlens.parsing import parse_batch_size, parse_bytes, parse_scopes
from normlens.precisions import AUTO
from normlens.wording import listed

#: Rules that make of an activation something linear, which layers can be composed of.
LINEAR_RULES = tuple(rule for rule in RULES if rule != SHAPLEY)


@dataclass(frozen=True)
class ExplainOptions:
    """The options of `Lens.explain`; wrong ones are refused when it is made.

    - `nonlinearity` is the rule for activations: "ig", "ig-bias" or "gradient".
    - `flow` keeps how much of the score goes where in each layer, by default unless a text is so
      long that these maps would take more than 128 MB; `heads` keeps the same by head, `scopes`
      the same behind each of these scopes.
    - `first_piece` accepts the first token of a target that is several.
    - `batch_size` is how many texts go through the model at a time; "auto" asks the memory.
    - `memory_limit` ("512MB") bounds what an explanation takes beside the model's own memory:
      beyond it layers run twice, and fewer scores are carried back together.
    """

    nonlinearity: str = Option(
        f"How activations are passed on: {listed(LINEAR_RULES, 'or')}.", metavar="RULE"
    ).field(IG)
    flow: bool | None = Option(
        "How much of the score goes where in each layer. Default: unless the text is very long."
    ).field(None)
    heads: bool = Option("The same by head.").field(False)
    scopes: str | Iterable[str] | None = Option(
        "The same behind a scope such as ATTN or FF; repeat it or separate names by commas.",
        metavar="NAME",
        flags=("--scope", "-s"),
        typed=list[str],
        parse=parse_scopes,
    ).field(None)
    first_piece: bool = Option("Accept the first token of a target that is several.").field(False)
    batch_size: int | str = Option(
        "Texts at a time.", metavar="N", typed=str, parse=parse_batch_size
    ).field(AUTO)
    memory_limit: int | float | str | None = Option(
        "Memory beside the model's own, for example 512MB.", metavar="SIZE", typed=str
    ).field(None)

    def __post_init__(self) -> None:
        if self.nonlinearity == SHAPLEY:
            raise InputError(NOT_LINEAR)
        valid_choice(self.nonlinearity, LINEAR_RULES, "rule for the nonlinearity")
        parse_bytes(self.memory_limit)
        if self.batch_size != AUTO:
            if isinstance(self.batch_size, str):
                raise OptionError(
                    "batch_size", f"{{option}} is a number or 'auto', not {self.batch_size!r}"
                )
            at_least_one(self.batch_size, "batch_size")


class ExplainKeywords(TypedDict, total=False):
    """The fields of `ExplainOptions` as keywords."""

    nonlinearity: str
    flow: bool | None
    heads: bool
    scopes: str | Iterable[str] | None
    first_piece: bool
    batch_size: int | str
    memory_limit: int | float | str | None
