"""Options of the readers, and the type of what they yield."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Where in the file a record stands ("line 3"), and the fields that it is made of.
Located = tuple[str, dict[str, Any]]

#: Formats and named data sets whose reader gives other records of the same file than it once did.
#: Fingerprints tell the readings apart, so that no old run goes on with other texts.
REVISIONS = {"wikitext": 2}


@dataclass(frozen=True)
class ReadOptions:
    """How to read files that leave a choice."""

    column: str | None = None
    pair_column: str | None = None
    paragraphs: bool = False
    #: further columns that a record keeps
    extra: tuple[str, ...] = ()


def unless(problem: str | None, **fields: Any) -> dict[str, Any]:
    """Give a record's fields, or the problem that keeps it from being read."""
    return fields if problem is None else {"unreadable": problem}
