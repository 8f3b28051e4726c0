"""What is typed for an option, as its value; nothing here needs torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from normlens.errors import InputError, OptionError
from normlens.precisions import AUTO

FROM_ZERO = "layers are counted from 0"
_LAYER_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class LayerRanges:
    """The layers of several ranges, counted only when they are asked for.

    The last layer of a range comes first, so that a range beyond the model's end is refused at
    once, by the number that was typed.
    """

    def __init__(self, ranges: Iterable[range]):
        self._ranges = tuple(ranges)

    def __iter__(self) -> Iterator[int]:
        return (layer for span in self._ranges for layer in reversed(span))

    def __repr__(self) -> str:
        return ",".join(f"{span.start}-{span.stop - 1}" for span in self._ranges)


def parse_layers(text: str) -> LayerRanges | None:
    """``"0,2-4"`` as layers; None is all of them."""
    if text.strip().lower() == "all":
        return None
    ranges = []
    for part in text.split(","):
        match = _LAYER_RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if match is None or first > last:
            raise InputError(
                f"cannot read --layers {text!r}; write for example 2, 0,2-4 or all ({FROM_ZERO})"
            )
        ranges.append(range(first, last + 1))
    return LayerRanges(ranges)


def parse_scopes(typed: Iterable[str]) -> list[str] | None:
    """Names that were repeated or separated by commas, as one list; None is all."""
    names = [name.strip() for given in typed for name in given.split(",") if name.strip()]
    return None if not names or names == ["all"] else names


def parse_batch_size(value: int | str) -> int | str:
    """A number of sequences, or "auto"."""
    try:
        size = AUTO if value == AUTO else int(value)
    except ValueError:
        size = 0
    if size != AUTO and int(size) < 1:
        raise OptionError("batch_size", f"{{option}} is a number from 1 or 'auto', not {value!r}")
    return size


def parse_bytes(value: int | float | str | None) -> int | None:
    """A memory limit as bytes: a number, or a string such as "512MB" or "1.5 GiB"."""
    if value is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)i?b?\s*", str(value).lower())
    try:
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise InputError(f"memory limit {value!r} is not a size; write for example '512MB' or 2e9")
    return size
