"""Parallel text: lines ``source ||| target``, as files for word alignment have them."""

from __future__ import annotations

from collections.abc import Iterator

from normlens.corpus.data.lines import Lines
from normlens.corpus.data.read_options import Located, ReadOptions
from normlens.corpus.data.records import Record
from normlens.corpus.data.source import Source
from normlens.errors import InputError

SEPARATOR = "|||"

#: The words of a source and those of its target.
WordPair = tuple[tuple[str, ...], tuple[str, ...]]


def read_parallel(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read a pair per line, both sides as words that spaces separate."""
    lines = Lines(source)
    for line in lines:
        if not line.strip():
            continue
        where = f"line {source.number}"
        if problem := lines.problem():
            yield where, {"unreadable": problem}
            continue
        pair = split_pair(line)
        if pair is None:
            raise InputError(
                f"{str(source.path)!r}, {where}: not a line of parallel text, which is a source "
                f"and its target with one {SEPARATOR} between them"
            )
        words, second = pair
        if words and second:
            yield where, {"words": words, "second_words": second}


def split_pair(line: str) -> WordPair | None:
    """The words on both sides of a line's separator; None unless there is exactly one."""
    sides = line.split(SEPARATOR)
    if len(sides) != 2:
        return None
    return tuple(sides[0].split()), tuple(sides[1].split())


def has_target(record: Record) -> bool:
    """Whether a record has a second text, which is a target to an encoder–decoder."""
    if record.words is not None:
        return record.second_words is not None
    if isinstance(record.text, str):
        return SEPARATOR in record.text
    return record.text is not None
