"""What an evaluation will do, settled before anything long starts."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from normlens.corpus.data.readers import open_data
from normlens.corpus.data.records import Data, Record
from normlens.corpus.runs.progress import Progress
from normlens.errors import InputError
from normlens.faithfulness.asking import Asking
from normlens.faithfulness.choosing import (
    check_columns,
    check_kind,
    default_kind,
    default_methods,
    default_protocols,
)
from normlens.faithfulness.columns import (
    BLIMP_BAD,
    BLIMP_EVIDENCE,
    BLIMP_GOOD,
    BLIMP_TEXT,
    Columns,
)
from normlens.faithfulness.methods.registry import method
from normlens.faithfulness.options import EvaluateOptions
from normlens.faithfulness.protocols.registry import kind_of
from normlens.faithfulness.questions import COSINE, NEXT_TOKEN
from normlens.options import AUTO

if TYPE_CHECKING:
    from normlens.lens import Lens

#: An interval over sequences needs so many.
LEAST_SEQUENCES = 2


@dataclass(frozen=True)
class Reading:
    """Which data is read, and how."""

    data: str | os.PathLike[str] | Data
    column: str | None = None
    pair_column: str | None = None
    paragraphs: bool = False
    limit: int | None = None

    def open(self, extra: tuple[str, ...]) -> Data:
        """The data with these columns beside its text."""
        if isinstance(self.data, Data):
            return self.data
        return open_data(
            os.fspath(self.data),
            column=self.column,
            pair_column=self.pair_column,
            paragraphs=self.paragraphs,
            limit=self.limit,
            extra=extra,
        )

    def has(self, extra: tuple[str, ...]) -> bool:
        """Whether the data can be read with these columns."""
        try:
            first = next(iter(self.open(extra)), None)
        except InputError:
            return False
        return first is not None and all(name in first.extra for name in extra)


@dataclass(frozen=True)
class Plan:
    """The settings of the measure, and how the data is read for it."""

    settings: dict[str, Any]
    columns: Columns
    reading: Reading


def make_plan(lens: Lens, options: EvaluateOptions, reading: Reading, progress: Progress) -> Plan:
    """Choose what was left open, and refuse what the model or the data does not allow."""
    named = options.protocols
    kind = kind_of(named) if named else default_kind(lens, pairs=True)
    columns = Columns(
        options.label_column, options.good_column, options.bad_column, options.evidence_column
    )
    if kind == NEXT_TOKEN and columns == Columns():
        reading, columns = _recognised(reading)
    first = _first(reading, columns)
    if kind == COSINE and not isinstance(first.text, tuple):
        if named:
            raise InputError(f"{named[0]} needs pairs of texts; give --pair-column")
        default_kind(lens)  # says what the model could be evaluated on
    protocols = named or default_protocols(lens, kind, columns)
    check_kind(lens, kind, protocols)
    check_columns(kind, protocols, columns)
    if columns.label is not None:
        Asking(lens, kind, columns, AUTO).class_of(first.extra[columns.label])
    settings = {
        **asdict(options),
        "methods": list(_methods(lens, options, progress)),
        "protocols": list(protocols),
        "label_column": columns.label,
        "good_column": columns.good,
        "bad_column": columns.bad,
        "evidence_column": columns.evidence,
    }
    kept = {name: value for name, value in settings.items() if value is not None}
    return Plan(kept, columns, reading)


def _recognised(reading: Reading) -> tuple[Reading, Columns]:
    """The data as BLiMP's own files are read, if it has their columns."""
    if reading.column is None and reading.pair_column is None and not reading.paragraphs:
        blimp = replace(reading, column=BLIMP_TEXT)
        words = (BLIMP_GOOD, BLIMP_BAD)
        for evidence in (BLIMP_EVIDENCE, None):
            if blimp.has(words if evidence is None else (*words, evidence)):
                return blimp, Columns(good=BLIMP_GOOD, bad=BLIMP_BAD, evidence=evidence)
    return reading, Columns()


def _first(reading: Reading, columns: Columns) -> Record:
    """The first text of data that is enough for an interval."""
    data = reading.open(columns.names)
    first: Record | None = None
    count = 0
    for record in data:
        count += 1
        if first is None and record.unreadable is None:
            first = record
    if count < LEAST_SEQUENCES or first is None:
        raise InputError(
            f"an interval needs at least {LEAST_SEQUENCES} sequences, and {data.name} gives "
            f"{count}; give more data, or a larger --limit"
        )
    for name in columns.names:
        if name not in first.extra:
            raise InputError(
                f"the data is open already and comes without the column {name!r}; pass "
                f"extra=({name!r},) to open_data"
            )
    return first


def _methods(lens: Lens, options: EvaluateOptions, progress: Progress) -> tuple[str, ...]:
    if options.methods is None:
        chosen = default_methods(lens)
        for reason in chosen.missing:
            progress.say(f"note: {reason}")
        return chosen.allowed
    for name in options.methods:
        method(name).needs(lens)
    return options.methods
