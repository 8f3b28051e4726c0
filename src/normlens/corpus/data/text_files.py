"""Readers of text: lines, paragraphs, parallel text, CoNLL's columns, STS-B's own files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from normlens.corpus.data.records import (
    Entity,
    Lines,
    Located,
    ReadOptions,
    Record,
    Source,
    is_spoilt,
    unless,
)
from normlens.errors import InputError

# Readers of running text: lines, paragraphs, and pairs of WikiText's paragraphs.


def read_text(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read a sequence per line, or per paragraph between blank lines."""
    paragraph: list[str] = []
    begin = 0
    lines = Lines(source)
    for line in lines:
        text = line.strip()
        if text and not paragraph:
            begin = source.number
        if text:
            paragraph.append(text)
        if paragraph and not (text and options.paragraphs):
            yield f"line {begin}", unless(lines.problem(), text=" ".join(paragraph))
            paragraph = []
    if paragraph:
        yield f"line {begin}", unless(lines.problem(), text=" ".join(paragraph))


def read_wikitext(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read pairs of consecutive paragraphs of an article, and what stands between the two."""
    lines = Lines(source)
    problems: dict[str, str] = {}  # paragraph → what is wrong with it

    def watched() -> Iterator[str]:
        for line in lines:
            if problem := lines.problem():
                problems[line.strip()] = problem
            yield line

    for index, (first, between, second) in enumerate(
        paragraph_pairs(watched()), source.start.record + 1
    ):
        read = (first, *between.split("\n"), second)
        problem = next((problems[text] for text in read if text in problems), None)
        problems.clear()
        yield f"pair {index}", unless(problem, text=(first, second), between=between)


def paragraph_pairs(paragraphs: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Pair the first and second, third and fourth, … paragraph of each article.

    Clark et al. 2019, section 2: two consecutive paragraphs of Wikipedia as BERT's two segments.
    Each pair comes as (first, between, second): a line break stands between the two, with the
    headings of sections that begin there, and the three in a row are one passage of the article.
    """
    first: str | None = None
    headings: list[str] = []  # behind the first paragraph
    for line in paragraphs:
        text = line.strip()
        if not text:
            continue
        if text.startswith("= ") and text.endswith(" ="):
            headings.append(text)
            if not text.startswith("= = "):  # an article's title, not a section's
                first = None
        elif first is None:
            first = text
            headings.clear()
        else:
            yield first, "\n".join(["", *headings, ""]), text
            first = None


# Parallel text: lines ``source ||| target``, as files for word alignment have them.


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


# Column files of the CoNLL shared tasks: a word per line, its tag in the last column.


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


# STS-B's own files: tab-separated, without a header, seven columns or more.
#
# Cer et al. 2017: genre, file, year, id, score from 0 to 5, the two sentences, and sometimes
# where they come from. Nothing is quoted.


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
