"""Joining many Parquet files of one table into one, a row group at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from normlens.errors import reason_of

if TYPE_CHECKING:
    from typing_extensions import Self

Combine = Callable[[pa.Table], pa.Table]

#: Rows of a row group. Whoever reads the file holds one of them per thread.
ROWS = 1 << 20
#: Bytes of rows in memory that are kept before they become a row group.
BYTES = 32 << 20


class Unjoinable(ValueError):
    """The file that is added cannot be joined; with `together`, some file of those added so far."""

    def __init__(self, reason: str, *, together: bool = False):
        super().__init__(reason)
        self.together = together


class JoinedFile:
    """A Parquet file that grows by whole files; its rows keep the order in which they come.

    With `combine` (an aggregate's, which is associative and exact) rows with the same keys become
    one, as far as they are in memory together; the others are merged when the table is asked.
    """

    def __init__(
        self,
        sink: IO[bytes],
        combine: Combine | None = None,
        rows_at_once: int = ROWS,
        bytes_at_once: int = BYTES,
    ):
        self.rows = 0
        self._sink = _Counted(sink)
        self._combine = combine
        self._at_once = (rows_at_once, bytes_at_once)
        self._writer: pq.ParquetWriter | None = None
        self._combined: pa.Table | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = self._pending_read = 0

    @property
    def size(self) -> int:
        """Bytes of the file so far; rows that wait count as they did in the files they are from."""
        return self._sink.bytes + self._pending_read

    @property
    def sha256(self) -> str:
        """The checksum of what was written; of the whole file once it is closed."""
        return self._sink.digest.hexdigest()

    def add(self, contents: bytes) -> None:
        """Append the rows of a Parquet file."""
        with _unjoinable():
            file = pq.ParquetFile(pa.BufferReader(contents))
            schema, groups = file.schema_arrow, file.num_row_groups
        if self._writer is None:
            with _unjoinable(pa.ArrowException):
                self._writer = _writer(self._sink, schema)
        elif not schema.equals(self._writer.schema):
            raise Unjoinable("its columns are not those of the table's other files")
        self._pending_read += len(contents)
        for group in range(groups):
            with _unjoinable():
                table = file.read_row_group(group, use_threads=False)
            self._pending.append(table)
            self._pending_rows += table.num_rows
            self._pending_bytes += table.nbytes
            if self._is_full():
                self._take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of a file that was not closed: pyarrow's writer would yet write to it."""
        self._sink.leave()
        if self._writer is not None:
            self._writer.close()

    def close(self) -> None:
        """Write the rest and the footer."""
        self._take()
        if self._combined is not None:
            self._write(self._combined)
        if self._writer is not None:
            self._writer.close()
        self._pending_read = 0

    def _is_full(self) -> bool:
        rows, size = self._at_once
        if self._combined is not None:
            # Merging the same rows again has to be worth it.
            rows = max(rows, self._combined.num_rows)
        return self._pending_rows >= rows or self._pending_bytes >= size

    def _take(self) -> None:
        """Write the rows that wait, or combine them and write what has become too much."""
        parts, self._pending = self._pending, []
        self._pending_rows = self._pending_bytes = 0
        if not parts:
            return
        if self._combine is None:
            self._write(pa.concat_tables(parts))
            self._pending_read = 0
            return
        before = [] if self._combined is None else [self._combined]
        with _unjoinable(together=True):
            combined = _without_old_labels(self._combine(pa.concat_tables([*before, *parts])))
        if combined.num_rows >= self._at_once[0] or combined.nbytes >= self._at_once[1]:
            self._write(combined)
            combined = None
        # Combined rows shrink; what they will take is known only when they are written.
        self._combined, self._pending_read = combined, 0

    def _write(self, table: pa.Table) -> None:
        assert self._writer is not None  # rows come from a file, which brought the columns
        self.rows += table.num_rows
        if table.num_rows:
            with _unjoinable(pa.ArrowException, together=True):
                table = table.unify_dictionaries().combine_chunks()
                self._writer.write_table(table, row_group_size=self._at_once[0])


@contextmanager
def _unjoinable(kind: type[Exception] = Exception, *, together: bool = False) -> Iterator[None]:
    """Say what is wrong with rows: a file that anybody may have made can raise nearly anything.

    Where something is written, `kind` leaves out what the disk raises.
    """
    try:
        yield
    except kind as error:
        raise Unjoinable(reason_of(error), together=together) from error


def _writer(sink: _Counted, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=labels(schema))


def labels(schema: pa.Schema) -> list[str]:
    """List the columns of text, which suit dictionaries; numbers they make larger and slower."""
    return [
        field.name
        for field in schema
        if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)
    ]


def _without_old_labels(table: pa.Table) -> pa.Table:
    """Drop labels that no row has any more, which would gather from file to file."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            texts = table.column(place).cast(field.type.value_type).combine_chunks()
            table = table.set_column(place, field, texts.dictionary_encode().cast(field.type))
    return table


class _Counted:
    """A file to write to, with the number and the checksum of the bytes that went there."""

    closed = False

    def __init__(self, sink: IO[bytes]):
        self._sink: IO[bytes] | None = sink
        self.bytes, self.digest = 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        size = memoryview(data).nbytes
        if self._sink is not None:
            self._sink.write(data)
            self.digest.update(data)
            self.bytes += size
        return size

    def leave(self) -> None:
        """Write nothing any more."""
        self._sink = None

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        if self._sink is not None:
            self._sink.flush()

    def close(self) -> None:
        """Leave the file open: whoever opened it closes it."""
