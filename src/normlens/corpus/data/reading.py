"""Reading a data set from any of its marks, and knowing where each record lies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from normlens.corpus.data.records import Record


class Mark(NamedTuple):
    """Where reading can go on: what lies before the next record.

    `file` counts files; the others count inside that one: bytes, lines (or rows of a table, or
    items of a list), and records.
    """

    file: int = 0
    offset: int = 0
    number: int = 0
    record: int = 0


START = Mark()


class Reading(Iterator["Record"]):
    """Records one after the other; `mark` is where the next one lies.

    This one counts records and nothing else: whoever begins at its marks reads past what lies
    before them.
    """

    digests: tuple[str, ...] = ()  # SHA-256 of each file, once `fingerprint` has read them all

    def __init__(self, records: Iterator[Record], start: Mark = START):
        self.count = start.record
        self._records = islice(records, start.record, None)

    def __next__(self) -> Record:
        record = next(self._records)
        self.count += 1
        return record

    @property
    def mark(self) -> Mark:
        return Mark(record=self.count)

    def fingerprint(self) -> str | None:
        """The data's fingerprint, if reading all of it has told; asked for once, at the end."""
        return None
