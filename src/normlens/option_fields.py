"""Fields of option dataclasses, with what the command line and signatures show of them.

An operation's options are one frozen dataclass. Each field that can be typed carries an `Option`:
`normlens.cli.fields` builds the command line from them. Nothing here needs torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

_KEY = "option"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """What the command line needs to know of a field beside its name, type and default."""

    help: str
    metavar: str | None = None
    #: where ``--name-of-the-field`` alone will not do: ("--scope", "-s")
    flags: tuple[str, ...] = ()
    #: the type of what is typed, where it is not the field's, and what makes the value of it
    typed: Any = None
    parse: Callable[[Any], Any] | None = None

    @property
    def metadata(self) -> dict[str, Option]:
        """What `dataclasses.field` takes as metadata."""
        return {_KEY: self}

    def field(self, default: Any) -> Any:
        """A dataclass field with this option."""
        return field(default=default, metadata=self.metadata)


def option_of(item: Field[Any]) -> Option | None:
    """What a field carries for the command line; None where it cannot be typed."""
    return item.metadata.get(_KEY)


def options_of(kind: Any) -> dict[str, Option]:
    """The options that can be typed, by the names of their fields."""
    return {item.name: option for item in fields(kind) if (option := option_of(item)) is not None}


def names_of(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(item.name for item in fields(kind))


def shows_fields_of(*kinds: Any, without: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Decorator: the signature of a function shows fields where it takes ``**options`` of them.

    Notebooks and `help` then list the options with their defaults; the call is left as it is.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        kept = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(kind, item.name, None),
                annotation=item.type,
            )
            for kind in kinds
            for item in fields(kind)
            if item.name not in without
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*kept, *shown]
        )
        return function

    return decorate
