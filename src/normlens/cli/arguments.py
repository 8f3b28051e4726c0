"""What is typed, as values: texts, layers, scopes, and options that need no model to be judged."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError, system_reason, valid_choice
from normlens.precisions import PRECISIONS

if TYPE_CHECKING:
    from normlens.lens import Lens

FROM_ZERO = "layers are counted from 0"
Ranges = list[tuple[int, int]] | None
_LAYER_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def read_text(
    texts: Sequence[str | None], pair: str | None, file: str | None
) -> str | tuple[str, str]:
    """The one text that was given, or the pair; a file where one was named."""
    given = [text for text in (*texts, file) if text is not None]
    if len(given) != 1:
        raise InputError('give one text, with --text "…" or with --file FILE')
    first = given[0] if file is None else _read_file(file)
    for part in (first, pair):
        if part is not None and not part.strip():
            raise InputError("the text is empty; give at least one word")
        if part is not None and any("\ud800" <= character <= "\udfff" for character in part):
            raise InputError("the text is not valid Unicode; encode it as UTF-8")
    return first if pair is None else (first, pair)


def _read_file(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig").strip()
    except OSError as error:
        raise InputError(f"cannot read {name!r}: {system_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name!r} is not UTF-8 text (byte {error.start}); convert it") from error


def checked_options(nonlinearity: str, samples: int, memory_limit: str | None) -> dict[str, Any]:
    """Options that can be judged before a model is loaded."""
    from normlens.decomposition import RULES
    from normlens.decomposition.memory import parse_bytes

    valid_choice(nonlinearity, RULES, "rule for the nonlinearity")
    if samples < 1:
        raise InputError(f"--samples must be at least 1, not {samples}")
    return {
        "nonlinearity": nonlinearity,
        "samples": samples,
        "memory_limit": parse_bytes(memory_limit),
    }


def checked_precision(precision: str) -> str:
    return valid_choice(precision, PRECISIONS, "--precision")


def parse_layers(text: str | None) -> Ranges:
    """``"0,2-4"`` as pairs of first and last layer; None is all."""
    if text is None or text.strip().lower() == "all":
        return None
    ranges = []
    for part in text.split(","):
        match = _LAYER_RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if match is None or first > last:
            raise InputError(
                f"cannot read --layers {text!r}; write for example 2, 0,2-4 or all ({FROM_ZERO})"
            )
        ranges.append((first, last))
    return ranges


def layer_indices(ranges: Ranges, lens: Lens) -> list[int] | None:
    """The layers of these ranges, or an error in the terms of the command line."""
    if ranges is None:
        return None
    for _, last in ranges:
        if last >= lens.n_layers:
            raise InputError(
                f"layer {last} is out of range; {lens.name} has layers 0 to {lens.n_layers - 1} "
                f"({FROM_ZERO})"
            )
    return sorted({layer for first, last in ranges for layer in range(first, last + 1)})


def parse_scopes(scopes: Iterable[str] | None) -> list[str] | None:
    """Names that were repeated or separated by commas, as one list; None is all."""
    names = [name.strip() for given in scopes or () for name in given.split(",") if name.strip()]
    return None if not names or names == ["all"] else names
