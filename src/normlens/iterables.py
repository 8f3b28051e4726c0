"""Texts as people have them: lists, columns of tables, arrays and generators as one list.

A tuple stays what it is, a pair of texts; what holds several columns is refused by name, because
iterating it gives the names of its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from normlens.errors import InputError


def as_list(value: Any) -> Any:
    """A list of what an iterable holds, in its order; anything that is one input as it is."""
    if value is None or isinstance(value, (str, bytes, tuple, list)):
        return value
    if is_table(value):
        raise InputError(
            f'a {type(value).__name__} has several columns; pass one of them, such as data["text"]'
        )
    if isinstance(value, Mapping):
        raise InputError(
            f"a {type(value).__name__} has keys and values; pass the texts, such as "
            "list(texts.values())"
        )
    if isinstance(value, Set) and not hasattr(value, "mapping"):  # the view of a dict has order
        raise InputError(
            f"a {type(value).__name__} has no order, so results could not be told apart; pass a "
            "list, such as sorted(texts)"
        )
    if hasattr(value, "to_pylist"):  # pyarrow's arrays hold scalars of their own
        return value.to_pylist()
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if hasattr(value, "__array__") and kind is not None and kind not in "OUT":
        return value  # numbers are no texts
    if not isinstance(value, Iterable) or hasattr(value, "is_floating_point"):
        return value  # a tensor of torch is iterable, too
    if getattr(value, "shape", None) == ():
        return value.item()  # type: ignore[attr-defined]
    return list(value)


def is_table(value: Any) -> bool:
    """Whether an object has rows of named columns: of pandas, pyarrow or `datasets`."""
    named = getattr(value, "column_names", None) is not None  # pyarrow, datasets
    return named or (hasattr(value, "columns") and hasattr(value, "iloc"))
