"""STS-B's own files: tab-separated, without a header, seven columns or more.

Cer et al. 2017: genre, file, year, id, score from 0 to 5, the two sentences, and sometimes where
they come from. Nothing is quoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from normlens.corpus.data.lines import Lines
from normlens.corpus.data.read_options import Located, ReadOptions
from normlens.corpus.data.source import Source
from normlens.errors import InputError

#: The columns that a record may keep beside its sentences, by their places.
COLUMNS = {"genre": 0, "file": 1, "year": 2, "id": 3, "score": 4}
_SENTENCES = (5, 6)


def looks_like_stsb(lines: Iterable[str]) -> bool:
    """Whether the first line has seven columns, and a score from 0 to 5 where one stands."""
    return _score(next(iter(lines), "").rstrip("\r\n").split("\t")) is not None


def read_stsb(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read pairs of sentences; `score` and the other columns are kept where they are asked for."""
    for name in options.extra:
        if name not in COLUMNS:
            raise InputError(
                f"{str(source.path)!r}: there is no column {name!r}; choose one of: "
                f"{', '.join(COLUMNS)}"
            )
    lines = Lines(source)
    for line in lines:
        if not line.strip():
            continue
        where = f"line {source.number}"
        if problem := lines.problem():
            yield where, {"unreadable": problem}
            continue
        row = line.rstrip("\r\n").split("\t")
        if _score(row) is None:
            raise InputError(
                f"{str(source.path)!r}, {where}: not a line of STS-B, which has genre, file, year, "
                "id, a score from 0 to 5 and two sentences, separated by tabs"
            )
        first, second = (row[place].strip() for place in _SENTENCES)
        if first and second:
            fields: dict[str, object] = {"text": (first, second)}
            if options.extra:
                fields["extra"] = {name: row[COLUMNS[name]].strip() for name in options.extra}
            yield where, fields


def _score(row: list[str]) -> float | None:
    if len(row) <= max(_SENTENCES):
        return None
    try:
        score = float(row[COLUMNS["score"]])
    except ValueError:
        return None
    return score if 0 <= score <= 5 else None
