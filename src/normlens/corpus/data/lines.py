"""The lines of a text file, and which of them are not text."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from normlens.corpus.data.source import Source
from normlens.errors import InputError

#: What files in other encodings begin with; the longer marks come first.
_OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class Lines:
    """The lines of a UTF-8 file, without a byte order mark.

    A line with other bytes is given too, so that whoever reads goes on behind it, and `problem`
    says what is wrong with it: it spoils the sequence that it belongs to and no other.
    """

    def __init__(self, source: Source):
        self.source, self.path = source, source.path
        self._problem: str | None = None

    def __iter__(self) -> Iterator[str]:
        source = self.source
        with source.open() as file:
            for line in file:
                source.offset += len(line)
                source.number += 1
                if source.number == 1:
                    self._check_encoding(line)
                    line = line.removeprefix(codecs.BOM_UTF8)
                try:
                    yield line.decode("utf-8")
                except UnicodeDecodeError as error:
                    byte = line[error.start]
                    self._problem = self._problem or (
                        f"line {source.number}: byte 0x{byte:02x} is not UTF-8; save the file as "
                        "UTF-8"
                    )
                    yield line.decode("utf-8", errors="surrogateescape")

    def problem(self) -> str | None:
        """Say what is wrong with the lines read since the last call; None if nothing is."""
        problem, self._problem = self._problem, None
        return problem

    def _check_encoding(self, first: bytes) -> None:
        for mark, name in _OTHER_MARKS.items():
            if first.startswith(mark):
                raise InputError(f"{str(self.path)!r} is {name}, not UTF-8; save it as UTF-8")


def is_spoilt(text: str) -> bool:
    """Whether a text holds characters that stand for bytes that are not UTF-8."""
    return any("\udc80" <= character <= "\udcff" for character in text)
