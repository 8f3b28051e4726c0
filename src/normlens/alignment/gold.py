"""Gold alignments: one line per sentence pair, ``i-j`` for a sure and ``ipj`` for a possible link.

The Hansards count words from 1, Pharaoh's format from 0 (where a possible link is also ``i?j``).
Nothing in a file says which, so the first word's number is worked out from the sentences' lengths.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normlens.alignment.options import FIRST_WORDS
from normlens.errors import InputError, system_reason
from normlens.measures.alignment import Link

_LINK = re.compile(r"(\d+)([-p?])(\d+)")


@dataclass(frozen=True)
class GoldLinks:
    """The links of one sentence pair, numbered as the file numbers them."""

    sure: frozenset[Link]
    possible: frozenset[Link]  # the sure ones among them

    def counted_from(self, first: int) -> GoldLinks:
        """The same links with words from 0, where the file counts from `first`."""
        sure, possible = (
            frozenset((source - first, target - first) for source, target in links)
            for links in (self.sure, self.possible)
        )
        return GoldLinks(sure, possible)

    def fits(self, first: int, lengths: tuple[int, int]) -> bool:
        """Whether every link joins words of a pair of so many words, counted from `first`."""
        return all(
            first <= word < first + length
            for link in self.possible
            for word, length in zip(link, lengths, strict=True)
        )


@dataclass(frozen=True)
class Gold:
    """A gold file."""

    path: str
    digest: str  # of its bytes
    lines: tuple[GoldLinks, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def first_word(self, lengths: Sequence[tuple[int, int]], given: int | None = None) -> int:
        """The number of a sentence's first word, given the words of every sentence pair.

        Raises unless the file has a line for each pair, and links to its words only.
        """
        if len(lengths) != len(self):
            raise InputError(
                f"{self.path!r} has {len(self)} lines and the data {len(lengths)} sentence pairs "
                "(blank ones left out); gold links stand in one line for each pair"
            )
        possible = FIRST_WORDS if given is None else (given,)
        wrong = {first: self._first_wrong(first, lengths) for first in possible}
        fitting = [first for first in possible if wrong[first] is None]
        if not fitting:
            last = max(line for line in wrong.values() if line is not None)
            source, target = lengths[last]
            raise InputError(
                f"{self.path!r}, line {last + 1}: it links words that the sentence pair does not "
                f"have ({source} in the source, {target} in the target); are these the gold links "
                "of this data, source first?"
            )
        if len(fitting) > 1:
            raise InputError(
                f"{self.path!r} could count words from 0 or from 1; say which with --gold-first"
            )
        return fitting[0]

    def _first_wrong(self, first: int, lengths: Sequence[tuple[int, int]]) -> int | None:
        pairs = zip(self.lines, lengths, strict=True)
        return next((n for n, (line, pair) in enumerate(pairs) if not line.fits(first, pair)), None)


def read_gold(path: str | os.PathLike[str]) -> Gold:
    """Read a gold file; a line may be empty."""
    try:
        contents = Path(path).expanduser().read_bytes()
        text = contents.decode("utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read the gold links in {str(path)!r}: {system_reason(error)}"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} holds no gold links; it is not UTF-8 text") from error
    lines = [
        _links(line, f"{str(path)!r}, line {number}")
        for number, line in enumerate(text.split("\n"), 1)
    ]
    if text.endswith("\n") or not text:
        lines.pop()
    if not any(line.possible for line in lines):
        raise InputError(f"{str(path)!r} holds no gold link; give lines such as '1-1 2p3'")
    return Gold(str(path), f"sha256:{hashlib.sha256(contents).hexdigest()}", tuple(lines))


def _links(line: str, where: str) -> GoldLinks:
    sure, possible = set(), set()
    for written in line.split():
        match = _LINK.fullmatch(written)
        if match is None:
            raise InputError(
                f"{where}: {written[:40]!r} is no link; write i-j for a sure and ipj (or i?j) for "
                "a possible one, the source's word first"
            )
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return GoldLinks(frozenset(sure), frozenset(possible))
