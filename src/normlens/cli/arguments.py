"""The texts that are typed, piped or in a file, or a picture."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from normlens.errors import InputError, NormLensError, system_reason

STDIN = "-"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Given:
    """One input: a text, a pair or a picture, and its line in a file of several, from 1."""

    value: str | tuple[str, str] | Path
    line: int | None = None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let errors about one of several inputs say which."""
        try:
            yield
        except NormLensError as error:
            if self.line is None:
                raise
            raise InputError(f"line {self.line}: {error}") from error


def read_inputs(
    texts: Sequence[str | None],
    pair: str | None,
    file: str | None,
    image: Path | None = None,
    *,
    lines: bool = False,
) -> Iterator[Given]:
    """The text, pair or picture that was given, or with `lines` each line of a file or of stdin.

    One input is read and judged at once; lines are read as they are asked for, but for the first.
    """
    if not lines:
        return iter([Given(_read_input(texts, pair, file, image))])
    if pair is not None or image is not None:
        raise InputError("--lines reads one text from each line; leave --pair and --image out")
    typed, name = _source(texts, file)
    if typed is not None:
        raise InputError("--lines reads texts from a file or a pipe; add --file FILE, or give -")
    every = _read_lines(name)
    first = next(every, None)
    if first is None:
        raise InputError(f"{_called(name)} holds no text; write one in each line")
    return chain([first], every)


def _read_input(
    texts: Sequence[str | None], pair: str | None, file: str | None, image: Path | None
) -> str | tuple[str, str] | Path:
    """The text or pair that was given, or the picture."""
    if image is None:
        return read_text(texts, pair, file)
    if any(given is not None for given in (*texts, pair, file)):
        raise InputError("give a text or an --image, not both")
    if not image.is_file():
        raise InputError(f"there is no file {str(image)!r}; --image names a picture")
    return image


def read_text(
    texts: Sequence[str | None], pair: str | None, file: str | None
) -> str | tuple[str, str]:
    """The one text that was given, or the pair; a file where one was named."""
    typed, name = _source(texts, file)
    first = read_file(name) if typed is None else typed
    for part in (first, pair):
        if part is not None:
            check_text(part)
    return first if pair is None else (first, pair)


def _source(texts: Sequence[str | None], file: str | None) -> tuple[str | None, str]:
    """The text that was typed, or None and the file to read it from; ``-`` is stdin."""
    given = [text for text in (*texts, file) if text is not None]
    if not given and _is_piped():
        return None, STDIN
    if len(given) != 1:
        raise InputError(
            'give one text, as "…" or with --text "…", with --file FILE, or through a pipe'
        )
    if file is not None or given == [STDIN]:
        return None, given[0]
    return given[0], ""


def _is_piped() -> bool:
    """Whether stdin is a pipe or a file, rather than a terminal or nothing at all."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def check_text(text: str, name: str = "text") -> None:
    """Raise for a text that is empty."""
    if not text.strip():
        raise InputError(f"the {name} is empty; give at least one word")


def read_file(name: str) -> str:
    """The text of a file, or of stdin, without the space around it."""
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return data.decode("utf-8-sig").strip()
    except OSError as error:
        raise InputError(f"cannot read {_called(name)}: {system_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{_called(name)} is not UTF-8 text (byte {error.start}); convert it"
        ) from error


def _read_lines(name: str) -> Iterator[Given]:
    """Each line of a file, or of stdin, that is not blank."""
    try:
        if name == STDIN:
            yield from _lines(sys.stdin.buffer, name)
            return
        with open(name, "rb") as stream:
            yield from _lines(stream, name)
    except OSError as error:
        raise InputError(f"cannot read {_called(name)}: {system_reason(error)}") from error


def _lines(stream: BinaryIO, name: str) -> Iterator[Given]:
    for number, data in enumerate(stream, start=1):
        try:
            text = data.removeprefix(_BOM if number == 1 else b"").decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise InputError(
                f"line {number} of {_called(name)} is not UTF-8 text; convert it"
            ) from error
        if text:
            yield Given(text, number)


def _called(name: str) -> str:
    return "standard input" if name == STDIN else repr(name)
