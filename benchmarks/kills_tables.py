"""The tables of complete runs, for `kills.py`: hashes of every bit, and what is wrong with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kills_runs import unvouched

from normlens.corpus import Run

#: Rows that are hashed together.
BLOCK = 1 << 16


def digests(run: Run) -> dict[str, tuple[int, str]]:
    """Rows of every table, and a hash of its schema and of its columns' bytes in their order."""
    return {name: digest(run, name) for name in run.tables}


def digest(run: Run, name: str) -> tuple[int, str]:
    rows, made = 0, hashlib.sha256()
    for number, block in enumerate(blocks(run, name)):
        if number == 0:
            made.update(repr([(field.name, str(field.type)) for field in block.schema]).encode())
        rows += len(block)
        for column in block.columns:
            for part in column_bytes(column):
                made.update(part)
    return rows, made.hexdigest()


def blocks(run: Run, name: str) -> Iterator[pa.Table]:
    """A table in its own order, in blocks; what a file holds depends on when it was written."""
    table = pa.Table.from_pandas(run.table(name), preserve_index=False)
    for start in range(0, max(1, len(table)), BLOCK):
        block = table[start : start + BLOCK]
        yield pa.table([plain(column) for column in block.columns], block.column_names)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values instead of numbers in a dictionary."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def column_bytes(column: pa.ChunkedArray) -> Iterator[bytes]:
    """The bytes of a column: which values are null, and the others."""
    yield np.asarray(pc.is_null(column)).tobytes()
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        yield np.asarray(pc.fill_null(column, pa.scalar(0, kind))).tobytes()
        return
    texts = column if pa.types.is_string(kind) else pa.chunked_array([as_texts(column)])
    texts = pc.fill_null(texts, "")
    yield np.asarray(pc.binary_length(texts)).tobytes()
    yield from map(text_bytes, texts.chunks)


def as_texts(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([str(value) for value in column.to_pylist()], pa.string())


def text_bytes(texts: pa.Array) -> bytes:
    """The bytes of all texts, one behind the other."""
    _, ends, content = texts.buffers()
    if not len(texts) or content is None:
        return b""
    places = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(content)[places[0] : places[-1]].tobytes()


def problems(out: Path, sequences: int) -> list[str]:
    """What is wrong with a complete run: files, leftovers, sequences that are not there once."""
    run = Run.open(out)
    wrong = [str(problem) for problem in run.check().problems]
    wrong += [f"{name}: no record vouches for it" for name in unvouched(out)]
    both = "SELECT index FROM sequences UNION ALL SELECT index FROM failures"
    counts = run.sql(f"SELECT count(*), count(DISTINCT index), max(index) FROM ({both})")
    if counts.iloc[0].tolist() != [sequences, sequences, sequences - 1]:
        wrong.append(f"sequences, different ones, the last: {counts.iloc[0].tolist()}")
    return wrong
