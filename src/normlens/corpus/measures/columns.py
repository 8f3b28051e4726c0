"""Building and summing columns of tables: labels, exact sums, and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.errors import InputError

#: text that repeats in millions of rows
LABEL = pa.dictionary(pa.int32(), pa.string())

#: Sums of parts of a corpus. Floating-point sums depend on their order, and with it on the size of
#: shards; fixed-point sums do not, and 10⁻¹⁸ is finer than what float32 maps can tell.
EXACT = pa.decimal128(38, 18)

#: every row of a row table says whose it is
WHOSE = (pa.field("index", pa.int64()), pa.field("sequence", pa.string()))


def exact(values: NDArray[np.float64]) -> pa.Array:
    """Convert numbers to fixed point, whose sums are the same in any order."""
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) >= 1e19:
        raise InputError("the maps hold values that are not finite or too large to be summed")
    return pa.array(values, pa.float64()).cast(EXACT)


def build(
    schema: pa.Schema, columns: Mapping[str, Any], labels: Mapping[str, Sequence[str]] | None = None
) -> pa.Table:
    """Build a table from arrays; a text column with `labels` is given as integers that index them.

    Scalars fill their column, NaN becomes null, exact sums are given as floats, Arrow's arrays are
    taken as they are, and no columns at all make an empty table.
    """
    if not columns:
        return schema.empty_table()
    size = max(len(values) for values in columns.values() if _is_column(values))
    arrays = []
    for field in schema:
        values = columns[field.name]
        if isinstance(values, pa.Array):
            arrays.append(values)
        elif not _is_column(values):
            value = None if values != values else values
            arrays.append(pa.repeat(pa.scalar(value, field.type), size))
        elif labels and field.name in labels:
            indices = pa.array(np.asarray(values, np.int32))
            names = pa.array(labels[field.name], pa.string())
            if field.type == LABEL:
                arrays.append(pa.DictionaryArray.from_arrays(indices, names))
            else:
                arrays.append(names.take(indices))
        elif field.type == EXACT:
            arrays.append(exact(np.asarray(values, np.float64)))
        else:
            arrays.append(pa.array(values, field.type, from_pandas=True))
    return pa.Table.from_arrays(arrays, schema=schema)


def _is_column(values: Any) -> bool:
    """Whether these are the values of all rows, not one for all."""
    return isinstance(values, pa.Array) or np.ndim(values) > 0


class Blocks:
    """Rows that arrive block by block, a scalar filling its block; together one set of columns."""

    def __init__(self) -> None:
        self._blocks: dict[str, list[NDArray[Any]]] = {}

    def add(self, **columns: Any) -> None:
        size = max((len(values) for values in columns.values() if np.ndim(values)), default=1)
        for name, values in columns.items():
            block = values if np.ndim(values) else np.full(size, values)
            self._blocks.setdefault(name, []).append(block)

    def columns(self) -> dict[str, NDArray[Any]]:
        return {name: np.concatenate(blocks) for name, blocks in self._blocks.items()}


def codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str]]:
    """Convert a column of labels to integers, and list the labels in alphabetical order."""
    chunks = [(chunk.dictionary.to_pylist(), chunk.indices.to_numpy()) for chunk in column.chunks]
    names = sorted({label for labels, _ in chunks for label in labels})
    places = {name: place for place, name in enumerate(names)}
    numbers = [np.array([places[label] for label in labels], np.int64)[i] for labels, i in chunks]
    return np.concatenate([np.empty(0, np.int64), *numbers]), names


def sort(table: pa.Table, by: Sequence[str]) -> pa.Table:
    """Sort rows by these columns, text alphabetically."""
    keys = [
        codes(table[name])[0] if table.schema.field(name).type == LABEL else table[name].to_numpy()
        for name in reversed(by)
    ]
    return table.take(np.lexsort(keys))


def sums(
    parts: pa.Table, keys: Sequence[str], values: Sequence[str], order: Sequence[str]
) -> pa.Table:
    """Group by `keys` and sum each value, in the order of some of the keys."""
    grouped = (
        parts.unify_dictionaries()
        .group_by(list(keys), use_threads=False)
        .aggregate([(value, "sum") for value in values])
    )
    renamed = {f"{value}_sum": value for value in values}
    grouped = grouped.rename_columns([renamed.get(name, name) for name in grouped.column_names])
    return sort(grouped.select(parts.column_names), order).cast(parts.schema)


def sums_sql(
    keys: Sequence[str],
    values: Mapping[str, str],
    order: Sequence[str] | None = None,
    qualify: str = "",
) -> str:
    """Write the same as SQL over all shards; `values` maps each column to its expression.

    `qualify` is a condition on the sums, which may compare them with others (a window).
    """
    columns = [*(f'"{key}"' for key in keys), *(f'{sql} AS "{n}"' for n, sql in values.items())]
    listed = ", ".join(f'"{key}"' for key in keys)
    ordered = ", ".join(f'"{key}"' for key in order or keys)
    kept = f" QUALIFY {qualify}" if qualify else ""
    return f"SELECT {', '.join(columns)} FROM parts GROUP BY {listed}{kept} ORDER BY {ordered}"


def total(column: str) -> str:
    """Write SQL for the sum of an exact column, as a float."""
    return f'CAST(sum("{column}") AS DOUBLE)'


def count(column: str = "count") -> str:
    """Write SQL for the sum of a column of counts."""
    return f'CAST(sum("{column}") AS BIGINT)'
