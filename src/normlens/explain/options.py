"""What an explanation may be asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from normlens.decomposition.feedforward import NOT_LINEAR
from normlens.decomposition.memory import DEFAULT_LIMIT, parse_bytes
from normlens.decomposition.rules import PLAIN_RULES, SHAPLEY
from normlens.errors import InputError, valid_choice
from normlens.options import at_least_one
from normlens.precisions import AUTO


@dataclass(frozen=True)
class ExplainOptions:
    """The options of `Lens.explain`; wrong ones are refused when it is made.

    `Lens.explain` says what each one does.
    """

    nonlinearity: str = "ig"
    flow: bool = True
    heads: bool = False
    scopes: str | Iterable[str] | None = None
    first_piece: bool = False
    batch_size: int | str = AUTO
    memory_limit: int | float | str | None = None

    def __post_init__(self) -> None:
        if self.nonlinearity == SHAPLEY:
            raise InputError(NOT_LINEAR)
        valid_choice(self.nonlinearity, tuple(PLAIN_RULES), "rule for the nonlinearity")
        parse_bytes(self.memory_limit)
        if self.batch_size != AUTO:
            if isinstance(self.batch_size, str):
                raise InputError(f"batch_size is a number or 'auto', not {self.batch_size!r}")
            at_least_one(self.batch_size, "batch_size")

    @property
    def limit(self) -> int:
        """The memory, in bytes, that an explanation may take beside the model's own."""
        return parse_bytes(self.memory_limit) or DEFAULT_LIMIT


class ExplainKeywords(TypedDict, total=False):
    """The same options as keywords."""

    nonlinearity: str
    flow: bool
    heads: bool
    scopes: str | Iterable[str] | None
    first_piece: bool
    batch_size: int | str
    memory_limit: int | float | str | None
