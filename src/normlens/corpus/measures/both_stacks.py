"""Measures of both stacks of an encoder–decoder: every row says which stack it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from normlens.corpus.measures.base import Item, Measure, Needs
from normlens.corpus.measures.columns import LABEL, WHOSE

#: The stack whose vectors a row is about. CROSS: from tokens of the encoder to the decoder's.
ENCODER, DECODER, CROSS = STACKS = "encoder", "decoder", "cross"
STACK = pa.field("stack", LABEL)

#: The rows of one pair, stack by stack.
ByStack = Iterable[tuple[str, dict[str, pa.Table]]]


def for_two_stacks(measure: Measure) -> Measure:
    """The form of a measure for an encoder–decoder; a measure without one stays as it is."""
    made = getattr(measure, "for_two_stacks", None)
    return measure if made is None else made()


class BothStacks:
    """A measure of one stack, taken of both; its tables have the column `stack` beside the others.

    `by_stack` gives a pair's rows; by default they are those of the encoder's maps and those of the
    decoder's.
    """

    def __init__(self, measure: Measure, by_stack: Callable[[Item], ByStack] | None = None):
        self.measure = measure
        self.by_stack = by_stack or self._encoder_and_decoder
        self.name = measure.name
        self.tables = {name: with_column(schema, STACK) for name, schema in measure.tables.items()}
        self.order = {name: _order(columns) for name, columns in measure.order.items()}
        # A name may mean a scope of one stack alone, so all of both are asked for.
        self.needs: Needs = replace(measure.needs, scopes=None)

    @property
    def options(self) -> dict[str, Any]:
        return self.measure.options

    @property
    def sql(self) -> Mapping[str, str]:
        return {table: _each_stack(sql) for table, sql in self.measure.sql.items()}

    def rows(self, item: Item) -> dict[str, pa.Table]:
        """Measure one pair: the rows of both stacks."""
        return self._joined(self.by_stack(item))

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Merge the rows of each stack apart."""
        merged: ByStack = (
            (stack, {table: self.measure.combine(table, _of_stack(parts, stack))})
            for stack in STACKS
        )
        return self._joined(merged)[table]

    def _encoder_and_decoder(self, item: Item) -> Iterator[tuple[str, dict[str, pa.Table]]]:
        if item.maps.encoder is not None:
            yield ENCODER, self.measure.rows(encoder_item(item))
        yield DECODER, self.measure.rows(item)

    def _joined(self, by_stack: ByStack) -> dict[str, pa.Table]:
        parts: dict[str, list[pa.Table]] = {}
        for stack, tables in by_stack:
            for name, rows in tables.items():
                parts.setdefault(name, []).append(_labelled(rows, stack, self.tables[name]))
        return {
            name: pa.concat_tables([self.tables[name].empty_table(), *rows]).unify_dictionaries()
            for name, rows in parts.items()
        }


def encoder_item(item: Item) -> Item:
    """What the encoder read and its maps, as a measure of one stack receives them."""
    source, maps = item.source, item.maps.encoder
    assert source is not None
    assert maps is not None
    return replace(item, encoded=source, maps=maps)


def with_column(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    """A schema with further columns, behind those that say whose a row is."""
    place = len([field for field in schema if field in WHOSE])
    columns = list(schema)
    return pa.schema([*columns[:place], *fields, *columns[place:]])


def _order(columns: tuple[str, ...]) -> tuple[str, ...]:
    first = int(columns[0] == "index")
    return (*columns[:first], STACK.name, *columns[first:])


def _labelled(rows: pa.Table, stack: str, schema: pa.Schema) -> pa.Table:
    labels = pa.repeat(pa.scalar(stack), rows.num_rows).dictionary_encode().cast(LABEL)
    place = schema.names.index(STACK.name)
    return rows.add_column(place, STACK, labels).cast(schema)


def _of_stack(parts: pa.Table, stack: str) -> pa.Table:
    column = parts[STACK.name].cast(pa.string())
    return parts.filter(pc.equal(column, stack)).drop_columns([STACK.name])


def _each_stack(sql: str) -> str:
    """The SQL that merges one stack's rows, for every stack."""
    union, named = "FROM parts", f'"{STACK.name}"'
    assert sql.count(union) == 1  # the whole of a built-in measure's tables are read once
    selected = (
        f"SELECT '{stack}' AS {named}, * FROM ("
        + sql.replace(union, f"FROM (SELECT * EXCLUDE ({named}) {union} WHERE {named} = '{stack}')")
        + ")"
        for stack in STACKS
    )
    return " UNION ALL ".join(selected)
