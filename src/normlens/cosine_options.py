"""What a cosine may be asked for: one set of options for Python and shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from normlens.explain_options import LINEAR_RULES, ExplainOptions
from normlens.nonlinearities import IG
from normlens.option_fields import Option
from normlens.parsing import parse_batch_size
from normlens.precisions import AUTO
from normlens.wording import listed


@dataclass(frozen=True)
class CosineOptions:
    """The options of `Lens.cosine`; wrong ones are refused when it is made.

    - `nonlinearity` is the rule for activations: "ig", "ig-bias" or "gradient".
    - `batch_size` is how many texts go through the model at a time; "auto" asks the memory.
    - `memory_limit` ("512MB") bounds what the tokens' vectors take beside the model's own memory.
    """

    nonlinearity: str = Option(
        f"How activations are passed on: {listed(LINEAR_RULES, 'or')}.", metavar="RULE"
    ).field(IG)
    batch_size: int | str = Option(
        "Texts at a time.", metavar="N", typed=str, parse=parse_batch_size
    ).field(AUTO)
    memory_limit: int | float | str | None = Option(
        "Memory beside the model's own, for example 512MB.", metavar="SIZE", typed=str
    ).field(None)

    def __post_init__(self) -> None:
        # The same rules hold for explanations.
        ExplainOptions(
            nonlinearity=self.nonlinearity,
            batch_size=self.batch_size,
            memory_limit=self.memory_limit,
        )


class CosineKeywords(TypedDict, total=False):
    """The fields of `CosineOptions` as keywords."""

    nonlinearity: str
    batch_size: int | str
    memory_limit: int | float | str | None
