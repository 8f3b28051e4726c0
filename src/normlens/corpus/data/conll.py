"""Column files of the CoNLL shared tasks: a word per line, its tag in the last column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from normlens.corpus.data.lines import is_spoilt
from normlens.corpus.data.records import Entity
from normlens.errors import InputError

SUFFIXES = (".conll", ".train", ".testa", ".testb", ".bio", ".iob", ".iob2", ".iobes")
_DOCUMENT = "-DOCSTART-"
_TAG = re.compile(r"O|[BIESLU]-(\S+)")
# BILOU and IOBES are one scheme in other letters.
_LETTERS = {"L": "E", "U": "S"}

Sentence = tuple[tuple[str, ...], tuple[Entity, ...]]


def sentences(lines: Iterable[str], where: str, first: int = 1) -> Iterator[Sentence]:
    """Read words and entities of each sentence; `-DOCSTART-` lines are not sentences.

    `first` is the number of the first line in its file, which errors count from.
    """
    words: list[str] = []
    tags: list[str] = []
    width: int | None = None
    for number, line in enumerate(lines, first):
        fields = _fields(line)
        if not fields or fields[0] == _DOCUMENT:
            if words:
                yield tuple(words), entities(tags)
            words, tags = [], []
            continue
        width = width or len(fields)
        if len(fields) != width or width < 2:
            raise InputError(
                f"{where}, line {number}: {len(fields)} columns where "
                f"{'the lines before have ' + str(width) if width > 1 else 'two are needed'}; "
                "each line is a word, further columns, and its entity tag"
            )
        if not _TAG.fullmatch(fields[-1]) and not is_spoilt(line):
            raise InputError(
                f"{where}, line {number}: the last column is {fields[-1]!r}, not an entity tag "
                "such as O, B-PER or I-PER"
            )
        words.append(fields[0])
        tags.append(fields[-1])
    if words:
        yield tuple(words), entities(tags)


def entities(tags: Iterable[str]) -> tuple[Entity, ...]:
    """Find the entity spans in a sentence's tags: IOB1, IOB2, IOE1, IOE2, IOBES or BILOU.

    These are the chunk borders of the shared tasks' own scorer (conlleval). In IOB1 a B- stands
    only where an entity follows another of the same label; an I- after O or after another
    label begins an entity as well.
    """
    spans: list[Entity] = []
    start = 0
    letter, label = "O", ""
    for index, tag in enumerate([*tags, "O"]):
        new_letter, _, new_label = tag.partition("-")
        new_letter = _LETTERS.get(new_letter, new_letter)
        continues = (
            letter in ("B", "I")
            and new_letter in ("I", "E")
            # A label that changes ends the entity even without a B-.
            and new_label == label
        )
        if not continues:
            if letter != "O":
                spans.append(Entity(start, index, label))
            start = index
        letter, label = new_letter, new_label
    return tuple(spans)


def looks_like_columns(lines: Iterable[str]) -> bool:
    """Whether a file's first lines are words with entity tags rather than prose."""
    width: int | None = None
    count = 0
    for line in islice(lines, 40):
        fields = _fields(line)
        if not fields:
            continue
        if fields[0] == _DOCUMENT:
            return True
        width = width or len(fields)
        if len(fields) != width or width < 2 or not _TAG.fullmatch(fields[-1]):
            return False
        count += 1
    # Two lines of prose may end like tags by chance; a tagged sentence is longer.
    return count >= 3


def _fields(line: str) -> list[str]:
    """Split a line into columns, at spaces and tabs only: a word may hold U+00A0."""
    return [field for field in re.split(r"[ \t\r\n]+", line) if field]
