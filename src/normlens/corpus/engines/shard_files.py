"""The files of a shard's tables, which its worker writes where they belong."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from normlens.corpus.runs.folder_base import Folder
from normlens.corpus.runs.shards import File, Shard, table_name


class Encoded(NamedTuple):
    """A table as the bytes of its file."""

    rows: int
    data: bytes


def write_tables(folder: Folder, shard: Shard, tables: Mapping[str, Encoded]) -> dict[str, File]:
    """Write each table to the shard's file for it, one request each, and describe the files."""
    files = {}
    for table, (rows, data) in tables.items():
        name = table_name(table, shard.number, shard.epoch, shard.attempt)
        folder.write(name, data)
        files[table] = File(name, rows, len(data), hashlib.sha256(data).hexdigest())
    return files


def parquet(table: pa.Table) -> Encoded:
    """Encode a table as a Parquet file."""
    # Dictionaries suit text that repeats; numbers they make larger and slower to write.
    labels = [
        field.name
        for field in table.schema
        if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)
    ]
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=labels)
    return Encoded(table.num_rows, buffer.getvalue())
