"""Texts, pictures and sounds as encoded sequences.

Texts as people have them, lists, columns of tables, arrays and generators, become one list here. A
tuple stays what it is, a pair of texts; what holds several columns is refused by name, because
iterating it gives the names of its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from normlens.errors import require


def as_list(value: Any) -> Any:
    """A list of what an iterable holds, in its order; anything that is one input as it is."""
    if value is None or isinstance(value, (str, bytes, tuple, list)):
        return value
    is_set = isinstance(value, Set) and not hasattr(value, "mapping")  # a dict's view has order
    require(
        not (is_table(value) or isinstance(value, Mapping) or is_set),
        f"expected a text or a pair of texts, or several, got a {type(value).__name__}; pass a "
        'list, such as sorted(texts) or list(texts.values()), or one column, such as data["text"]',
    )
    if hasattr(value, "to_pylist"):  # pyarrow's arrays hold scalars of their own
        return value.to_pylist()
    numbers = getattr(getattr(value, "dtype", None), "kind", "O") not in "OUT"
    if hasattr(value, "__array__") and numbers:
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
