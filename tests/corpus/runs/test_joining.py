"""Many Parquet files of one table as one: the same rows in the same order, in bounded pieces."""

from __future__ import annotations

import gc
import hashlib
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normlens.corpus.measures.base import EXACT, LABEL, WHOSE, exact, sums
from normlens.corpus.runs.joining import JoinedFile, Unjoinable

ROWS = pa.schema([*WHOSE, pa.field("scope", LABEL), pa.field("value", pa.float64())])
SUMS = pa.schema([pa.field("token", LABEL), pa.field("count", pa.int64()), pa.field("sum", EXACT)])


def parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def rows(first: int, size: int, labels: list[str]) -> pa.Table:
    """Rows of consecutive sequences; values that are not finite or are missing among them."""
    index = np.arange(first, first + size)
    values = [None, float("nan"), -0.0, 1 / 3]
    columns = [
        pa.array(index),
        pa.array([f"s{i}" for i in index], pa.string()),
        pa.array([labels[i % len(labels)] for i in index], pa.string()).cast(LABEL),
        pa.array([values[i % 4] for i in index], pa.float64()),
    ]
    return pa.Table.from_arrays(columns, schema=ROWS)


def joined(parts: list[pa.Table], **options: Any) -> tuple[JoinedFile, bytes]:
    sink = io.BytesIO()
    file = JoinedFile(sink, **options)
    for part in parts:
        file.add(parquet(part))
    file.close()
    return file, sink.getvalue()


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12), at_once=st.integers(1, 30))
def test_rows_keep_their_order_and_their_bits(sizes: list[int], at_once: int) -> None:
    starts = np.cumsum([0, *sizes])
    # Every file has labels of its own, in an order of its own.
    parts = [
        rows(int(first), size, [f"l{place}", "all", f"m{place % 2}"])
        for place, (first, size) in enumerate(zip(starts, sizes, strict=False))
    ]
    file, contents = joined(parts, rows_at_once=at_once)
    table = pq.read_table(io.BytesIO(contents))
    whole = pa.concat_tables(parts)
    assert table.schema.equals(ROWS)
    for name in ("index", "sequence"):
        assert table[name].to_pylist() == whole[name].to_pylist()
    assert table["scope"].cast(pa.string()).to_pylist() == (
        whole["scope"].cast(pa.string()).to_pylist()
    )
    assert table["value"].is_null().to_pylist() == whole["value"].is_null().to_pylist()
    bits = [
        column["value"].combine_chunks().fill_null(7.0).to_numpy().tobytes()
        for column in (table, whole)
    ]
    assert bits[0] == bits[1]
    assert file.rows == sum(sizes)
    assert file.size == len(contents)
    assert file.sha256 == hashlib.sha256(contents).hexdigest()


def test_a_row_group_is_written_as_soon_as_it_is_full() -> None:
    parts = [rows(8 * place, 8, ["a", "b"]) for place in range(50)]
    sink = io.BytesIO()
    file = JoinedFile(sink, rows_at_once=20)
    waiting = []
    for part in parts:
        file.add(parquet(part))
        waiting.append(file._pending_rows)
    assert max(waiting) < 20  # nothing is held that could be written
    file.close()
    described = pq.ParquetFile(io.BytesIO(sink.getvalue())).metadata
    sizes = [described.row_group(group).num_rows for group in range(described.num_row_groups)]
    assert sum(sizes) == 400
    assert max(sizes) <= 20
    assert len(sizes) < len(parts)


def test_rows_that_are_large_are_written_before_there_are_many() -> None:
    parts = [rows(place, 1, ["long" * 500]) for place in range(20)]
    _, contents = joined(parts, bytes_at_once=5000)
    assert 1 < pq.ParquetFile(io.BytesIO(contents)).metadata.num_row_groups < 20


def part_of_sums(seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    tokens = [f"t{token}" for token in chance.permutation(12)[:7]]
    columns = [
        pa.array(tokens).cast(LABEL),
        pa.array(chance.integers(1, 9, 7)),
        exact(chance.standard_normal(7)),
    ]
    return pa.Table.from_arrays(columns, schema=SUMS)


def combine(parts: pa.Table) -> pa.Table:
    return sums(parts, ["token"], ["count", "sum"], ["token"])


@pytest.mark.parametrize("at_once", [5, 20, 1000])
def test_sums_are_combined_exactly_however_much_fits_into_memory(at_once: int) -> None:
    parts = [part_of_sums(seed) for seed in range(30)]
    file, contents = joined(parts, combine=combine, rows_at_once=at_once)
    table = pq.read_table(io.BytesIO(contents))
    assert combine(table).to_pylist() == combine(pa.concat_tables(parts)).to_pylist()
    assert file.rows == table.num_rows
    if at_once == 1000:
        assert table.num_rows == 12  # nothing is there twice
    # And once more, as parts of parts.
    halves = [joined(some, combine=combine)[1] for some in (parts[:11], parts[11:])]
    again, _ = joined([pq.read_table(io.BytesIO(half)) for half in halves], combine=combine)
    assert again.rows == 12


def test_labels_of_rows_that_were_left_out_are_forgotten() -> None:
    """A sample keeps few rows of many; the names of the others must not gather."""
    parts = [rows(place, 1, [f"label {place}"]) for place in range(30)]
    _, contents = joined(parts, combine=lambda table: table.slice(table.num_rows - 1))
    [scope] = pq.read_table(io.BytesIO(contents))["scope"].chunks
    assert scope.dictionary.to_pylist() == ["label 29"]


def test_tables_without_rows_keep_their_columns() -> None:
    for options in ({}, {"combine": lambda table: table}):
        file, contents = joined([ROWS.empty_table()] * 3, **options)
        assert file.rows == 0
        assert pq.read_table(io.BytesIO(contents)).schema.equals(ROWS)


def test_a_file_that_is_given_up_is_not_written_to_any_more() -> None:
    """A writer of pyarrow ends its file when it is forgotten, whatever has taken its place."""
    sink = io.BytesIO()
    with JoinedFile(sink, rows_at_once=1) as file:
        file.add(parquet(rows(0, 3, ["a"])))
    before = sink.getvalue()
    assert before
    del file
    gc.collect()
    assert sink.getvalue() == before


def test_other_columns_are_refused() -> None:
    with pytest.raises(Unjoinable):
        joined([rows(0, 2, ["a"]), part_of_sums(0)])
