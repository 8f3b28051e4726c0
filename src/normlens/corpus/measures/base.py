"""The interface of a measure, and the columns of its tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
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

# Columns of tables: their types, tables built from arrays, and exact sums.


#: text that repeats in millions of rows
LABEL = pa.dictionary(pa.int32(), pa.string())

#: Sums of parts of a corpus. Floating-point sums depend on their order, and with it on the size of
#: blocks; fixed-point sums do not, and 10⁻¹⁸ is finer than what float32 maps can tell.
EXACT = pa.decimal128(38, 18)

#: every row of a row table says whose it is
WHOSE = (pa.field("index", pa.int64()), pa.field("sequence", pa.string()))

#: The stack whose vectors a row is about. CROSS: from tokens of the encoder to the decoder's.
ENCODER, DECODER, CROSS = STACKS = "encoder", "decoder", "cross"
STACK = pa.field("stack", LABEL)

INT, LONG, REAL, TEXT, FLAG = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_()


def schema_of(*fields: pa.Field, **types: pa.DataType) -> pa.Schema:
    """A table's columns: some that others have, too, and further ones by name."""
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in types.items())])


def build(
    schema: pa.Schema,
    columns: Mapping[str, Any],
    labels: Mapping[str, Sequence[str]] | None = None,
    here: NDArray[np.bool_] | None = None,
) -> pa.Table:
    """Build a table from arrays that broadcast together: a row per entry, or per entry of `here`.

    A text column with `labels` is given as integers that index them. NaN becomes null, exact sums
    are given as floats, and no columns at all make an empty table.
    """
    if not columns:
        return schema.empty_table()
    shapes = [np.shape(columns[name]) for name in schema.names]
    shape = np.broadcast_shapes((1,), *shapes, *(() if here is None else (here.shape,)))
    chosen = None if here is None else np.broadcast_to(here, shape)
    size = int(np.prod(shape) if chosen is None else np.count_nonzero(chosen))
    arrays = []
    for column, given in zip(schema, shapes, strict=True):
        values, texts = columns[column.name], (labels or {}).get(column.name)
        if not given and texts is None:
            value = None if values != values else values
            arrays.append(pa.repeat(pa.scalar(value, column.type), size))
            continue
        values = np.broadcast_to(values, shape)
        values = values.ravel() if chosen is None else values[chosen]
        if texts is not None:
            names = pa.DictionaryArray.from_arrays(values.astype(np.int32), pa.array(texts, TEXT))
            arrays.append(names if column.type == LABEL else names.dictionary_decode())
        elif column.type == EXACT:
            arrays.append(exact(values.astype(np.float64)))
        else:
            # Arrow makes dictionaries of lists alone.
            plain = values.tolist() if column.type == LABEL else values
            arrays.append(pa.array(plain, column.type, from_pandas=True))
    return pa.Table.from_arrays(arrays, schema=schema)


def exact(values: NDArray[np.float64]) -> pa.Array:
    """Convert numbers to fixed point, whose sums are the same in any order."""
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) >= 1e19:
        raise InputError("the maps hold values that are not finite or too large to be summed")
    return pa.array(values, pa.float64()).cast(EXACT)


class RowParts:
    """Rows that arrive part by part, a scalar filling its part; together one set of columns."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def add(self, **columns: Any) -> None:
        for name, part in zip(columns, np.broadcast_arrays(*columns.values()), strict=True):
            self._parts.setdefault(name, []).append(np.atleast_1d(part))

    def columns(self) -> dict[str, NDArray[Any]]:
        return {name: np.concatenate(parts) for name, parts in self._parts.items()}


def codes(column: pa.ChunkedArray, names: Sequence[str] | None = None) -> NDArray[Any]:
    """The values of a column as numbers that sort like them.

    A label's number is its place among `names`, by default in alphabetical order.
    """
    if column.type != LABEL:
        return np.asarray(column.to_numpy())
    chunks = column.unify_dictionaries().chunks
    labels = chunks[0].dictionary.to_pylist() if chunks else []
    places = {name: place for place, name in enumerate(names or sorted(labels))}
    numbers = np.array([places[label] for label in labels], np.int64)
    return np.concatenate([numbers[:0], *(numbers[chunk.indices.to_numpy()] for chunk in chunks)])


# A table as its measure declares it, and how rows of several blocks become one table.


@dataclass(frozen=True)
class Table:
    """The columns of a table and the order of its rows; of a table of sums, what is summed.

    A table of sums has a row for each combination of its other columns, its keys. `sums` writes
    each further column of the whole table as SQL over the rows of all blocks (`parts`).
    """

    columns: pa.Schema
    order: tuple[str, ...]
    sums: Mapping[str, str] = field(default_factory=dict)

    def without(self, names: Container[str]) -> Table:
        """The same table with fewer columns."""
        columns = pa.schema([column for column in self.columns if column.name not in names])
        return Table(columns, tuple(name for name in self.order if name not in names), self.sums)

    @property
    def keys(self) -> list[str]:
        return [name for name in self.columns.names if name not in self.sums]

    def combine(self, parts: pa.Table) -> pa.Table:
        """Sum the rows with the same keys; rows of a table without sums stay as they are."""
        if not self.sums:
            return parts
        summed = [name for name in self.columns.names if name in self.sums]
        grouped = (
            parts.unify_dictionaries()
            .group_by(self.keys, use_threads=False)
            .aggregate([(name, "sum") for name in summed])
            .select([*self.keys, *(f"{name}_sum" for name in summed)])
            .rename_columns([*self.keys, *summed])
            .select(self.columns.names)
        )
        order = np.lexsort([codes(grouped[name]) for name in reversed(self.order)])
        return grouped.take(order).cast(self.columns)

    def sql(self, qualify: str = "") -> str:
        """Write the same as SQL; `qualify` is a clause on the sums."""
        values = ", ".join(f'{sql} AS "{name}"' for name, sql in self.sums.items())
        keys = quoted(self.keys)
        grouped = f"SELECT {keys}, {values} FROM parts GROUP BY {keys}"
        return f"{grouped} {qualify} ORDER BY {quoted(self.order)}"


def quoted(names: Iterable[str]) -> str:
    """List columns for SQL."""
    return ", ".join(f'"{name}"' for name in names)


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
    stack: str = DECODER  # that the maps are of, in an encoder–decoder

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


class TableMeasure(RowMeasure):
    """A measure of this package: it declares its tables, and builds a sequence's rows.

    A model with one stack lacks the columns `of_pairs`. Of an encoder–decoder, a sequence's rows
    are those of both stacks.
    """

    name: str
    declared: Mapping[str, Table]
    of_pairs: Container[str] = ("stack",)
    two_stacks = False

    def for_two_stacks(self) -> Measure:
        """The same measure for an encoder–decoder."""
        measure = copy(self)
        vars(measure).pop("_tables", None)
        vars(measure)["two_stacks"] = True
        return measure

    @cached_property
    def _tables(self) -> dict[str, Table]:
        removed = () if self.two_stacks else self.of_pairs
        return {name: table.without(removed) for name, table in self.declared.items()}

    @property
    def tables(self) -> Mapping[str, pa.Schema]:
        return {name: table.columns for name, table in self._tables.items()}

    @property
    def order(self) -> Mapping[str, tuple[str, ...]]:
        return {name: table.order for name, table in self._tables.items()}

    @property
    def sql(self) -> Mapping[str, str]:  # type: ignore[override]
        return {name: table.sql() for name, table in self._tables.items() if table.sums}

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Sum the rows of a table of sums; keep other rows as they are."""
        return self._tables[table].combine(parts)

    def rows(self, item: Item) -> dict[str, pa.Table]:
        """Measure one sequence: its rows, per table."""
        made = list(self.parts(item))
        return {
            name: pa.concat_tables([table.columns.empty_table(), *(part[name] for part in made)])
            for name, table in self._tables.items()
        }

    def parts(self, item: Item) -> Iterator[dict[str, pa.Table]]:
        """The rows of a sequence in parts; by default those of each stack."""
        if item.maps.encoder is not None:
            yield self.of_stack(encoder_item(item))
        yield self.of_stack(item)

    def of_stack(self, item: Item) -> dict[str, pa.Table]:
        """The rows of one stack's maps."""
        raise NotImplementedError

    def build(
        self,
        table: str,
        columns: Mapping[str, Any],
        labels: Mapping[str, Sequence[str]] | None = None,
        here: NDArray[np.bool_] | None = None,
    ) -> pa.Table:
        """Build one of the measure's tables, as `build` does."""
        labels = {"stack": STACKS, **(labels or {})}
        return build(self._tables[table].columns, columns, labels, here)


def for_two_stacks(measure: Measure) -> Measure:
    """The form of a measure for an encoder–decoder; a user's own stays as it is."""
    return measure.for_two_stacks() if isinstance(measure, TableMeasure) else measure


def encoder_item(item: Item) -> Item:
    """What the encoder read and its maps, as a measure of one stack receives them."""
    source, maps = item.source, item.maps.encoder
    assert source is not None
    assert maps is not None
    return replace(item, encoded=source, maps=maps, stack=ENCODER)


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
    """What each of a sequence's rows says of it; the stack is a label of `STACKS`."""
    return {"index": item.index, "sequence": item.sequence, "stack": STACKS.index(item.stack)}


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
