"""One value for all questions of a call, or a list with one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normlens.errors import InputError


def is_list(value: Any) -> bool:
    """Whether several values are given, one for each question."""
    return isinstance(value, (list, tuple))


def question_count(texts: list[int], lists: Sequence[Any]) -> int:
    """How many questions a call asks; its lists must be equally long."""
    lengths = {*texts, *map(len, lists)}
    several = lengths - {1} or lengths
    if len(several) > 1:
        raise InputError(
            "texts, targets, contrasts, positions or tokens in lists must be equally long, not "
            f"{', '.join(map(str, sorted(several)))}"
        )
    if 0 in lengths and lists:
        raise InputError("a list of targets, contrasts, positions or tokens is empty")
    return next(iter(several), 1)


def spread(value: Any, count: int) -> list[Any]:
    """One value for each question."""
    if not is_list(value):
        return [value] * count
    return list(value) * count if len(value) == 1 else list(value)
