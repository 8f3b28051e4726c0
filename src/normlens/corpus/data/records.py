"""Records of a data set: sequences as text, as words or as vocabulary tokens."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from normlens.corpus.data.reading import START, Mark, Reading
from normlens.errors import InputError


@contextmanager
def located(place: str) -> Iterator[None]:
    """Put the place in the data before the message of an error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


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
        alone = self.words is self.second_words is self.tokens is None and not self.entities
        if alone and self.text is not None:
            return  # as of nearly all records
        given = [name for name in ("text", "words", "tokens") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InputError(
                f"a record has one of text, words and tokens, not {' and '.join(given) or 'none'}"
            )
        if self.words is not None:
            _check_words(self.words, "word")
        if self.second_words is not None:
            if self.words is None:
                raise InputError("the second text is given in words and the first is not")
            _check_words(self.second_words, "word of the second text")
        if self.tokens is not None:
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
    if record.between is None:
        del fields["between"]  # data without it keeps its checksums
    return json.dumps(fields, sort_keys=True, default=list).encode()


def _check_words(words: tuple[str, ...], what: str) -> None:
    if not words:
        raise InputError(f"there is no {what}; give at least one")
    for index, word in enumerate(words):
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


class Data(ABC):
    """A data set that can be read any number of times, always in the same order."""

    #: whether `reading` goes to a mark at once; if not, it reads past what lies before
    seeks = False

    def __init__(self, name: str, limit: int | None = None):
        if limit is not None and limit < 1:
            raise InputError(f"limit must be at least 1, not {limit}")
        self.name = name
        self.limit = limit

    def __iter__(self) -> Iterator[Record]:
        return islice(self.reading(), self.limit)

    def reading(self, start: Mark = START, *, fingerprint: bool = False) -> Reading:
        """Read every record from a mark on, whatever the limit.

        With `fingerprint`, which is for reading from the start, the reading also finds out the
        data's fingerprint where that depends on what is read.
        """
        return Reading(self._records(), start)

    def quick_fingerprint(self) -> str | None:
        """The fingerprint if it can be told without reading the data, else None."""
        return None

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for equal contents read in the same way, wherever the files lie."""
        return self._fingerprint()

    def _records(self) -> Iterator[Record]:
        """Every record, read as it is asked for; data with a `reading` of its own has none."""
        raise NotImplementedError

    @abstractmethod
    def _fingerprint(self) -> str: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
