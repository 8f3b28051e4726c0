"""The text that is typed, or the file that holds it, or a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from normlens.errors import InputError, system_reason


def read_text(
    texts: Sequence[str | None], pair: str | None, file: str | None
) -> str | tuple[str, str]:
    """The one text that was given, or the pair; a file where one was named."""
    given = [text for text in (*texts, file) if text is not None]
    if len(given) != 1:
        raise InputError('give one text, with --text "…" or with --file FILE')
    first = given[0] if file is None else _read_file(file)
    for part in (first, pair):
        if part is not None:
            check_text(part)
    return first if pair is None else (first, pair)


def read_input(
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


def check_text(text: str, name: str = "text") -> None:
    """Raise for a text that is empty or no text at all."""
    if not text.strip():
        raise InputError(f"the {name} is empty; give at least one word")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"the {name} is not valid Unicode; encode it as UTF-8")


def _read_file(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig").strip()
    except OSError as error:
        raise InputError(f"cannot read {name!r}: {system_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name!r} is not UTF-8 text (byte {error.start}); convert it") from error
