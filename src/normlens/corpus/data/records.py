"""Records of a data set, and where a reading of them stands in its files or rows."""

from __future__ import annotations

import codecs
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from normlens.errors import InputError, require

# Records of a data set: sequences as text, as words or as vocabulary tokens.


#: What a record is made of; nothing at all where a row is blank.
Fields = dict[str, Any]


@contextmanager
def located(place: str | Callable[[], str]) -> Iterator[None]:
    """Put the place in the data before the message of an error."""
    try:
        yield
    except InputError as error:
        where = place if isinstance(place, str) else place()
        raise InputError(f"{where}: {error}") from error


@dataclass(frozen=True)
class Entity:
    """A named entity: the words from `start` up to, not including, `stop`."""

    start: int
    stop: int
    label: str


@dataclass(frozen=True)
class Record:
    """One sequence: a text (or a pair), words, or tokens of a vocabulary; one of the three.

    `second_words` are those of the second text of a pair, such as the target of a translation,
    beside the `words` of the first. `extra` holds further columns of its row (a label, a score)
    that a measure reads. A sequence whose bytes are not text keeps its place, with the reason as
    `unreadable`. `between` is what stands between the two texts of a pair that follow each other
    in one document. `id` is the file's name and a running index in it, the same in every run.
    """

    id: str
    text: str | tuple[str, str] | None = None
    words: tuple[str, ...] | None = None
    second_words: tuple[str, ...] | None = None
    tokens: tuple[str, ...] | None = None
    entities: tuple[Entity, ...] = ()
    unreadable: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    between: str | None = None

    def __post_init__(self) -> None:
        if self.unreadable is not None:
            return
        given = [self.text, self.words, self.tokens].count(None)
        require(given == 2, "a record has one of text, words and tokens")
        if self.text is None or self.second_words is not None:
            apart = self.second_words is not None and self.words is None
            require(not apart, "the second text is given in words and the first is not")
            _check_words(self.words, "word")
            _check_words(self.second_words, "word of the second text")
            _check_words(self.tokens, "token")
        if self.entities:
            _check_entities(self.entities, self.words)

    @property
    def texts(self) -> str | tuple[str, str] | None:
        """The text or the pair of texts, also of a pair in words; None for words or tokens."""
        if self.words is not None and self.second_words is not None:
            return " ".join(self.words), " ".join(self.second_words)
        return self.text

    @property
    def passage(self) -> str | None:
        """The two texts of a pair as they stand in one document; None unless they do."""
        if self.between is None or not isinstance(self.text, tuple):
            return None
        return self.between.join(self.text)


def written(record: Record) -> bytes:
    """All of a record as bytes, to take a checksum of."""
    fields = {**vars(record), "entities": [vars(entity) for entity in record.entities]}
    return json.dumps(fields, sort_keys=True, default=list).encode()


def _check_words(words: tuple[str, ...] | None, what: str) -> None:
    require(words != (), f"there is no {what}; give at least one")
    for index, word in enumerate(words or ()):
        if not isinstance(word, str) or not word.strip():
            raise InputError(
                f"{what} {index} is {word!r}; every {what} is a text that is not blank"
            )


def _check_entities(entities: tuple[Entity, ...], words: tuple[str, ...] | None) -> None:
    if words is None:
        raise InputError("entities are spans of words; give words instead of a text or tokens")
    end = 0
    # A token belongs to one entity at most, so spans may not share a word.
    for entity in entities:
        if not end <= entity.start < entity.stop <= len(words):
            raise InputError(
                f"entity {entity.start}–{entity.stop} ({entity.label}) is not a span of the "
                f"{len(words)} words after the one before it; give start < stop, in order, "
                "without overlap"
            )
        end = entity.stop


# Data sets, and readings of them that can begin at any mark.


@dataclass(frozen=True)
class ReadOptions:
    """How to read files that leave a choice."""

    column: str | None = None
    pair_column: str | None = None
    paragraphs: bool = False
    #: further columns that a record keeps
    extra: tuple[str, ...] = ()


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


class Position:
    """How far a reading has come, in the units of a `Mark`; readers keep it up to date."""

    def __init__(self, start: Mark = START):
        self.file, self.offset, self.number, self.record = start

    def count(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield rows, and count them."""
        for row in rows:
            self.number += 1
            yield row


class Reading(Iterator[Record]):
    """Records one after the other; `mark` is where the next one lies."""

    def __init__(self, data: Data, start: Mark = START):
        self._position = Position(start)
        self._records = data.records_from(self._position)

    def __next__(self) -> Record:
        record = next(self._records)
        self._position.record += 1
        return record

    @property
    def mark(self) -> Mark:
        return Mark(**vars(self._position))


class Data(ABC):
    """A data set that can be read any number of times, always in the same order."""

    #: whether `reading` goes to a mark at once; if not, it reads past what lies before
    seeks = False

    def __init__(self, name: str, limit: int | None = None):
        require(limit is None or limit >= 1, f"limit must be at least 1, not {limit}")
        self.name = name
        self.limit = limit

    def __iter__(self) -> Iterator[Record]:
        return islice(self.reading(), self.limit)

    def reading(self, start: Mark = START) -> Reading:
        """Read every record from a mark on, whatever the limit."""
        return Reading(self, start)

    def records_from(self, position: Position) -> Iterator[Record]:
        """The records from a position on; data that seeks moves the position as it reads."""
        return islice(self._records(), position.record, None)

    def stamps(self) -> list[tuple[int, int]]:
        """Size and time of every file that the data lies in, to see whether one was changed."""
        return []

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for equal contents read in the same way, wherever the files lie."""
        return self._fingerprint()

    def _records(self) -> Iterator[Record]:
        """Every record, read as it is asked for; data with its own `records_from` has none."""
        raise NotImplementedError

    @abstractmethod
    def _fingerprint(self) -> str: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


# One file as its reader sees it: where to begin, and how far it has come.


_BUFFER = 1 << 18
#: What files in other encodings begin with; the longer marks come first.
_OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class Source:
    """A file that is read from a position on, by rows or as lines of UTF-8.

    Readers keep the position at what they have read, so that behind each record it says where the
    next one begins. A line with other bytes is given too, so that reading goes on behind it, and
    `problem` says what is wrong with it: it makes the record that it belongs to unreadable, and no
    other.
    """

    unit = "line"  # what the position's `number` counts

    def __init__(self, path: Path, position: Position | None = None):
        self.path = path
        self.position = position or Position()
        self.problem: str | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield the lines from the position on, without a byte order mark."""
        position = self.position
        with self.path.open("rb", buffering=_BUFFER) as file:
            file.seek(position.offset)
            for line in file:
                if position.number == 0:
                    _check_encoding(line)
                position.offset += len(line)
                position.number += 1
                if position.number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    text = line.decode(errors="surrogateescape")
                    self.problem = (
                        f"line {position.number}: byte 0x{line[error.start]:02x} is not UTF-8; "
                        "save the file as UTF-8"
                    )
                yield text

    def records(self, rows: Iterable[Fields], name: str) -> Iterator[Record]:
        """Make records of their fields; an error names the file and the line or row."""
        with located(self._place):
            for fields in rows:
                if self.problem is not None:
                    fields, self.problem = {"unreadable": self.problem}, None
                yield Record(f"{name}:{self.position.record}", **fields)

    def _place(self) -> str:
        number = self.position.number
        return repr(str(self.path)) + (f", {self.unit} {number}" if number else "")


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check_encoding(first: bytes) -> None:
    for mark, name in _OTHER_MARKS.items():
        require(not first.startswith(mark), f"it is {name}, not UTF-8; save it as UTF-8")
