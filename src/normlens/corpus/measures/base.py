"""The interface of a measure, and the columns of its tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.options import IG
from normlens.results.explanation import Explanation
from normlens.results.maps import Maps

if TYPE_CHECKING:
    from normlens.corpus.engines.block_rows import Clock
    from normlens.inputs.text import Encoded
    from normlens.lens import Lens

# Building and summing columns of tables: labels, exact sums, and groups.


#: text that repeats in millions of rows
LABEL = pa.dictionary(pa.int32(), pa.string())

#: Sums of parts of a corpus. Floating-point sums depend on their order, and with it on the size of
#: blocks; fixed-point sums do not, and 10⁻¹⁸ is finer than what float32 maps can tell.
EXACT = pa.decimal128(38, 18)

#: every row of a row table says whose it is
WHOSE = (pa.field("index", pa.int64()), pa.field("sequence", pa.string()))


INT, LONG, REAL, TEXT, FLAG = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_()


def schema_of(*fields: pa.Field, **types: pa.DataType) -> pa.Schema:
    """A table's columns: some that others have, too, and further ones by name."""
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in types.items())])


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


class RowParts:
    """Rows that arrive part by part, a scalar filling its part; together one set of columns."""

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
    grouped = grouped.rename_columns([name.removesuffix("_sum") for name in grouped.column_names])
    return sort(grouped.select(parts.column_names), order).cast(parts.schema)


def sums_sql(
    keys: Sequence[str],
    values: Mapping[str, str],
    order: Sequence[str] | None = None,
    qualify: str = "",
) -> str:
    """Write the same as SQL over all blocks; `values` maps each column to its expression.

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


# The interface of a measure: rows per sequence, combining rows, and merging blocks.


AT_ONCE = 1 << 16  # pairs of tokens, which bounds the memory that a measure takes


@dataclass(frozen=True)
class Item:
    """One sequence with its maps, as a measure receives it.

    Of an encoder–decoder these are the decoder's maps and tokens, and `source` is what the encoder
    reads. `encoded` may also say which entity each token belongs to (`entities`: index or
    None) and which tokens were masked (`masked`: booleans). Where no measure of a run needs maps,
    `maps` have no layers; where one asks for them, `explanations` are the answers to its question.
    """

    sequence: str  # the record's id
    index: int  # its running number in the data, from 0
    maps: Maps
    encoded: Encoded
    seed: int = 0
    explanations: tuple[Explanation, ...] = ()

    def __len__(self) -> int:
        return len(self.encoded.ids)

    @property
    def tokens_read(self) -> int:
        """The tokens that the model reads: its own, and the source's where there is one."""
        return sum(map(len, self.encoded.sequences))

    @property
    def source(self) -> Encoded | None:
        """What an encoder reads beside the decoder's tokens; None: the model has one stack."""
        return self.encoded.source


@dataclass(frozen=True)
class Asked:
    """A question that `Lens.explain` answers about every sequence."""

    target: str | int | None = None
    contrast: str | int | None = None
    position: str | int | None = None
    first_piece: bool = False
    nonlinearity: str = IG


@dataclass(frozen=True)
class Needs:
    """What a measure asks of `Lens.analyse`: scopes (None is all of them) and statistics.

    A measure that sets `arrays` to False reads the maps' `correlations` alone, where there are any.
    With `heads`, maps of single heads are there, too.
    `asked` is a question to explain. With `apart`, the texts of a pair are encoded each for itself.
    With `pairs`, only an encoder–decoder will do, and texts are words that spaces separate.
    """

    scopes: tuple[str, ...] | None = None
    statistics: bool = False
    arrays: bool = True
    correlations: bool = False
    heads: bool = False
    asked: Asked | None = None
    apart: bool = False
    pairs: bool = False

    @property
    def maps(self) -> bool:
        """Whether any maps are needed."""
        return self.scopes != () or any(
            (self.statistics, self.arrays, self.correlations, self.heads)
        )

    def __or__(self, other: Needs) -> Needs:
        """Combine what two measures need."""
        if self.asked is not None and other.asked not in (None, self.asked):
            raise InputError("two measures explain different questions; take one run for each")
        scopes = None
        if self.scopes is not None and other.scopes is not None:
            scopes = tuple(dict.fromkeys(self.scopes + other.scopes))
        flags = ("statistics", "arrays", "correlations", "heads", "apart", "pairs")
        return Needs(
            scopes,
            asked=self.asked if other.asked is None else other.asked,
            **{name: getattr(self, name) or getattr(other, name) for name in flags},
        )


@runtime_checkable
class Measure(Protocol):
    """Turns one sequence into rows of one or more tables.

    A row table keeps every row and has the columns `index` and `sequence`. An aggregate keeps sums
    or a bounded sample: `combine` merges rows of any sequences (it is associative, and merging
    twice changes nothing), and `sql` merges the union of all blocks, called `parts`, in DuckDB. A
    table without `sql` is a row table, final as it is. `order` names the columns that sort it.
    """

    @property
    def name(self) -> str: ...
    @property
    def tables(self) -> Mapping[str, pa.Schema]: ...
    @property
    def needs(self) -> Needs: ...
    @property
    def sql(self) -> Mapping[str, str]: ...
    @property
    def order(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def options(self) -> dict[str, Any]:
        """The options that a manifest records (as JSON) to make this measure again."""
        ...

    def rows(self, item: Item) -> dict[str, pa.Table]:
        """Measure one sequence: its rows, per table."""
        ...

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Merge rows of several sequences, or of several combined tables."""
        ...


class RowMeasure:
    """A measure whose tables only grow: nothing to combine."""

    needs = Needs()
    sql: Mapping[str, str] = {}

    @property
    def options(self) -> dict[str, Any]:
        return {}

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Return the rows as they are."""
        return parts


def alike(maps: Maps, *scopes: str) -> list[NDArray[np.intp]]:
    """Group layers (by place) to measure at once: few, and with the same pairs and scopes.

    With `scopes`, those layers alone that have all of them.
    """
    changed = (maps.allowed[1:] != maps.allowed[:-1]).any(axis=(1, 2))
    if maps.coverage and maps.scopes:
        here = np.array([has_layers(maps, scope) for scope in maps.scopes])  # (scope, layer)
        changed |= (here[:, 1:] != here[:, :-1]).any(axis=0)
    size = max(1, AT_ONCE // max(1, maps.allowed[0].size))
    groups = [
        group[start : start + size]
        for group in np.split(np.arange(len(maps.layers)), np.flatnonzero(changed) + 1)
        for start in range(0, len(group), size)
    ]
    having = np.all([has_layers(maps, scope) for scope in scopes], axis=0)
    return [group for group in groups if not scopes or having[group[0]]]


def has_layers(maps: Maps, scope: str) -> NDArray[np.bool_]:
    """Whether each of the maps' layers has a scope."""
    return are_among(maps.layers, maps.layers_of(scope))


def are_among(layers: Iterable[int], others: Iterable[int]) -> NDArray[np.bool_]:
    """Whether each of these layers is one of the others."""
    # A model has few layers: `numpy.isin` takes ten times as long.
    others = set(others)
    return np.array([layer in others for layer in layers], dtype=bool)


def at_layers(maps: Maps, scope: str, group: NDArray[np.intp]) -> NDArray[Any]:
    """A scope's maps (layer, target, source) of some of the maps' layers, by their places."""
    layers = maps.layers_of(scope)
    return maps[scope][[layers.index(maps.layers[place]) for place in group]]


def whose(item: Item) -> dict[str, Any]:
    """What each of a sequence's rows says of it."""
    return {"index": item.index, "sequence": item.sequence}


def check_square(item: Item, measure: str) -> None:
    """Raise where sources are other tokens than targets, for measures of pairs of one text."""
    if item.maps.source_axis is not None:
        raise InputError(
            f"the measure {measure!r} compares the tokens of one text; the sources of "
            f"{item.sequence!r} are other tokens than its targets"
        )


# Measures that run the model themselves: attributions put to the test, ablations.


class BoundMeasure(ABC):
    """A measure together with the model that it runs."""

    @abstractmethod
    def batch_rows(self, items: Sequence[Item], clock: Clock) -> list[dict[str, pa.Table] | str]:
        """Measure some sequences: the rows of each, per table, or the reason why it has none.

        Rows depend on a sequence, the measure's options and the run's seed alone, not on the
        sequences beside it, but for the last digits of a batched product. Seconds that `clock`
        counts go to the block's record.
        """


class ModelMeasure(RowMeasure, ABC):
    """A measure that has to run the model; a worker binds it to its own, once."""

    name: str
    #: whether it can run an encoder–decoder
    reads_pairs = False

    @abstractmethod
    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        """The measure with a model; raises an `InputError` where the model lacks what it needs."""

    def rows(self, item: Item) -> dict[str, pa.Table]:
        """Refuse: this measure has no rows without a model."""
        raise InputError(f"the measure {self.name!r} runs the model; take it in normlens.run")
