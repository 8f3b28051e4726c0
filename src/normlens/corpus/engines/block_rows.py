"""The rows of blocks, sequence by sequence, in any order, and the files that they become."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.engines.guard import RUNS, Guard, Unfinished
from normlens.corpus.measures import BoundMeasure, Item, Measure
from normlens.corpus.measures.user_code import sources_of
from normlens.corpus.runs.folder import Folder, RunError
from normlens.corpus.runs.ledger import Block, File, FileSet, Unwritten, claim_name, table_file
from normlens.errors import InputError, NormLensError, is_out_of_memory, one_line, reason_of
from normlens.results.explanation import Explanation
from normlens.results.maps import Maps

# A block between its stages: its sequences, the time that they took, and their batches.


#: What is known of a sequence before it is measured.
Analysed = tuple[Maps, tuple[Explanation, ...]]

#: Bytes of maps that may wait to be measured; a batch is never smaller than one sequence.
HELD = 256 << 20


@dataclass(frozen=True)
class Entry:
    """One sequence: its running number in the data, and its tokens."""

    index: int
    encoded: EncodedRecord

    def __len__(self) -> int:
        """The tokens of the sequence, or of both that an encoder–decoder reads."""
        return sum(map(len, self.encoded.sequences))


class Clock:
    """Count the seconds that each stage of a block takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds({stage: time.perf_counter() - start})

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        for stage, spent in seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent


@dataclass(frozen=True)
class Prepared:
    """A block between its stages: tokenised, and with the rows that it has so far."""

    block: Block  # without its records
    batches: list[list[Entry]]
    rows: BlockRows
    clock: Clock
    started: float


def batches(
    entries: list[Entry], size: int, bytes_of: Callable[[int], int], tokens: int = 0
) -> Iterator[list[Entry]]:
    """Cut sequences into batches of at most `size`: alike in length, their maps fit in memory.

    A batch of short sequences may have more of them, as long as it has no more than so many
    `tokens`, padding included. `bytes_of` estimates the memory of the maps of a sequence of so many
    tokens.
    """
    ordered = sorted(entries, key=lambda entry: (len(entry), entry.index))
    batch: list[Entry] = []
    for entry in ordered:
        # The longest comes last, and decides.
        fits = (len(batch) + 1) * bytes_of(len(entry)) <= HELD
        full = len(batch) >= size and (len(batch) + 1) * len(entry) > tokens
        if batch and (full or not fits):
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch


# Collecting the rows of a block, sequence by sequence, in any order.


SEQUENCES = pa.schema(
    [
        pa.field("index", pa.int64()),
        pa.field("sequence", pa.string()),
        pa.field("tokens", pa.int32()),  # of the decoder, where there is an encoder, too
        pa.field("masked", pa.int32()),
        pa.field("completeness", pa.float64()),
        pa.field("source_tokens", pa.int32()),  # that an encoder read; null without one
        pa.field("generated", pa.string()),  # the model's own target; null: it was given
    ]
)
FAILURES = pa.schema(
    [
        pa.field("index", pa.int64()),
        pa.field("sequence", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
#: Tables of every run. Each sequence stands in one of the two, once.
RUN_TABLES = {"sequences": SEQUENCES, "failures": FAILURES}

#: Rows of an aggregate that are kept before they are merged.
PENDING = 1_500_000


def schemas(measures: Iterable[Measure]) -> dict[str, pa.Schema]:
    """List every table of a run with these measures."""
    tables: dict[str, pa.Schema] = dict(RUN_TABLES)
    for measure in measures:
        for table, schema in measure.tables.items():
            if table in tables:
                raise InputError(
                    f"two measures write a table {table!r}; leave {measure.name!r} out or rename it"
                )
            tables[table] = schema
    return tables


class BlockRows:
    """Rows per table; a sequence is in all of them or among the failures."""

    def __init__(self, measures: Iterable[Measure], guard: Guard | None = None):
        self.measures = tuple(measures)
        self._guard = guard or Guard()
        self._schemas = schemas(self.measures)
        self._rows: dict[str, dict[int, pa.Table]] = {table: {} for table in self._schemas}
        self._sums: dict[str, list[pa.Table]] = {
            table: [] for measure in self.measures for table in measure.sql
        }
        self._run_rows: dict[str, dict[int, dict[str, Any]]] = {table: {} for table in RUN_TABLES}

    @property
    def sequences(self) -> int:
        return len(self._run_rows["sequences"])

    @property
    def failures(self) -> int:
        return len(self._run_rows["failures"])

    @property
    def tokens(self) -> int:
        return sum(row["tokens"] for row in self._run_rows["sequences"].values())

    def fail(self, index: int, sequence: str, reason: str) -> None:
        """Remember why a sequence has no rows."""
        row = {"index": index, "sequence": sequence, "reason": one_line(reason)}
        self._run_rows["failures"][index] = row

    def add(self, item: Item, tables: Mapping[str, pa.Table]) -> None:
        """Keep the rows of a sequence, of all measures."""
        for table, rows in tables.items():
            self._keep(table, item.index, rows)
        encoded = item.encoded
        assert isinstance(encoded, EncodedRecord)
        self._run_rows["sequences"][item.index] = {
            "index": item.index,
            "sequence": item.sequence,
            "tokens": len(encoded),
            "masked": sum(encoded.masked),
            "completeness": _completeness(item.maps, item.explanations),
            "source_tokens": None if encoded.source is None else len(encoded.source),
            "generated": None if encoded.generated is None else _text(encoded),
        }

    def _keep(self, table: str, index: int, rows: pa.Table) -> None:
        if table not in self._sums:
            self._rows[table][index] = rows
            return
        parts = self._sums[table]
        parts.append(rows)
        # The first part is what was merged before; merging it again has to be worth it.
        merged, *pending = (part.num_rows for part in parts)
        if sum(pending) > max(PENDING, merged):
            self._sums[table] = [self._merged(table)]

    def _merged(self, table: str) -> pa.Table:
        measure = next(m for m in self.measures if table in m.tables)
        parts = self._sums[table] or [self._schemas[table].empty_table()]
        try:
            return self._guard.call(lambda: measure.combine(table, pa.concat_tables(parts)))
        except Unfinished as error:
            raise RunError(
                f"the measure {measure.name!r} cannot combine its rows: {error}; what is done is "
                "kept"
            ) from error

    def tables(self) -> dict[str, pa.Table]:
        """Build every table, with sequences in order."""
        tables = {}
        for table, schema in self._schemas.items():
            if table in RUN_TABLES:
                rows = self._run_rows[table]
                made = pa.Table.from_pylist([rows[i] for i in sorted(rows)], schema=schema)
            elif table in self._sums:
                made = self._merged(table)
            else:
                kept = self._rows[table]
                made = pa.concat_tables([schema.empty_table(), *(kept[i] for i in sorted(kept))])
            tables[table] = made.unify_dictionaries().combine_chunks()
        return tables


def _text(encoded: EncodedRecord) -> str:
    """A generated target as text, or its tokens where they are none."""
    return encoded.text if isinstance(encoded.text, str) else " ".join(encoded.tokens)


def _completeness(maps: Maps, explanations: tuple[Explanation, ...]) -> float:
    """The worst error of what was computed; NaN where nothing measures it."""
    errors = [maps.completeness] if maps.layers else []
    errors += [each.completeness for each in explanations]
    return max(map(float, errors), default=float("nan"))


def measured(
    measure: Measure, bound: BoundMeasure | None, items: Sequence[Item], clock: Clock, guard: Guard
) -> list[dict[str, pa.Table] | str]:
    """The rows of each sequence of a batch by one measure, or why it has none.

    A measure that is `bound` to a model takes a batch at once; where that fails as a whole, each
    sequence answers for itself.
    """
    if not items:
        return []
    try:
        if bound is not None:
            lengths = [item.tokens_read for item in items] * RUNS
            rows = guard.call(lambda: bound.batch_rows(items, clock), items[0].index, lengths)
            return [each if isinstance(each, str) else _checked(measure, each) for each in rows]
        if len(items) == 1:
            item = items[0]
            with clock.on("measures"):
                made = guard.call(lambda: measure.rows(item), item.index, [item.tokens_read])
                return [_checked(measure, made)]
    except Exception as error:
        out_of_memory = is_out_of_memory(error)
        if isinstance(error, OSError | MemoryError) or (len(items) == 1 and out_of_memory):
            # The machine's fault, not the sequence's.
            reason = "ran out of memory" if out_of_memory else f"failed ({reason_of(error)})"
            raise RunError(
                f"the measure {measure.name!r} {reason} at {items[0].sequence}; what is done is "
                "kept: resume the run, with a smaller --batch-size or --max-length, or with fewer "
                "--workers, if memory is short"
            ) from error
        if len(items) == 1:
            kind = "" if isinstance(error, NormLensError) else f"{type(error).__name__}: "
            return [f"{kind}{error}"]
    return [rows for item in items for rows in measured(measure, bound, [item], clock, guard)]


def _checked(measure: Measure, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Cast a measure's rows to the types that it announced; raise for numbers that are none."""
    if set(tables) != set(measure.tables):
        raise ValueError(
            f"it gave the tables {sorted(tables)} where it announces {sorted(measure.tables)}"
        )
    cast = {
        table: rows if rows.schema == measure.tables[table] else rows.cast(measure.tables[table])
        for table, rows in tables.items()
    }
    for table, rows in cast.items():
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if _has_nan(column):
                raise InputError(
                    f"the column {name!r} of its table {table!r} holds NaN; where there is no "
                    "value, give None"
                )
    return cast


def _has_nan(column: pa.ChunkedArray) -> bool:
    while isinstance(column.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        column = pc.list_flatten(column)
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


# Gathering the rows of finished blocks, until a file is worth it.


@dataclass
class Gathered:
    """The tables of some blocks, and what is to be said of them."""

    epoch: int = 0  # of the driver that handed the blocks out
    blocks: list[int] = field(default_factory=list)
    parts: dict[str, list[tuple[int, pa.Table]]] = field(default_factory=dict)  # with their blocks
    bytes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    clock: Clock = field(default_factory=Clock)
    started: float = field(default_factory=time.time)


class Gatherer:
    """Joins the tables of finished blocks, and writes a set of files when that is worth it.

    A set holds so many `megabytes` of rows, or was begun so many `minutes` ago; or it has as many
    blocks as `most`, which doubles from set to set.
    """

    def __init__(
        self,
        folder: Folder,
        measures: Iterable[Measure],
        by: Mapping[str, Any],
        megabytes: float,
        minutes: float,
    ):
        self.folder, self.by, self.most = folder, dict(by), sys.maxsize
        self._bytes, self._seconds = megabytes * (1 << 20), 60 * minutes
        # Sums of a user's own measures may depend on what is summed first: only queries sum them.
        self._combine = {
            table: measure
            for measure in measures
            for table in measure.sql
            if sources_of(measure.name, measure) is None
        }
        self._turn = Lock()
        self._open = Gathered()

    def add(self, prepared: Prepared, alone: bool = False) -> FileSet | Unwritten:
        """Take in a block; what is written now, if anything, or only the block if it is `alone`."""
        with prepared.clock.on("tables"):
            tables = prepared.rows.tables()
        with self._turn:
            now = Gathered() if alone else self._open
            block, rows = prepared.block, prepared.rows
            now.epoch = block.epoch
            now.blocks.append(block.number)
            now.started = min(now.started, prepared.started)
            now.counts.update(sequences=rows.sequences, failures=rows.failures, tokens=rows.tokens)
            now.clock.add_seconds(prepared.clock.seconds)
            for name, table in tables.items():
                now.parts.setdefault(name, []).append((block.number, table))
                now.bytes += table.nbytes
            if not alone:
                if not self._is_due(now):
                    return Unwritten(block.number)
                self._open, self.most = Gathered(), min(2 * self.most, sys.maxsize)
        return self._written(now)

    def write(self) -> FileSet | None:
        """Write what there is."""
        with self._turn:
            now, self._open = self._open, Gathered()
        return self._written(now) if now.blocks else None

    def _is_due(self, now: Gathered) -> bool:
        if len(now.blocks) >= self.most or time.time() - now.started >= self._seconds:
            return True
        if now.bytes < self._bytes:
            return False
        # Sums shrink when they are summed; what is left has to be worth a file.
        with now.clock.on("tables"):
            for name in self._combine:
                now.parts[name] = [(now.blocks[0], self._joined(name, now))]
        now.bytes = sum(table.nbytes for parts in now.parts.values() for _, table in parts)
        return now.bytes >= self._bytes / 2

    def _joined(self, name: str, now: Gathered) -> pa.Table:
        parts = [table for _, table in sorted(now.parts[name], key=lambda part: part[0])]
        if len(parts) == 1:
            return parts[0]
        joined = pa.concat_tables(parts)
        if name in self._combine:
            joined = _without_old_labels(self._combine[name].combine(name, joined))
        return joined.unify_dictionaries().combine_chunks()

    def _written(self, now: Gathered) -> FileSet:
        """Write a set of files, one request each, and describe them."""
        if self.folder.read(claim_name(now.epoch + 1)) is not None:
            raise RunError(f"another process has taken over the run in {str(self.folder)!r}")
        files = {}
        for table in now.parts:
            with now.clock.on("tables"):
                joined = self._joined(table, now)
                data = parquet(joined)
            name = table_file(table, min(now.blocks), now.epoch)
            with now.clock.on("writing"):
                self.folder.write(name, data)
            digest = hashlib.sha256(data).hexdigest()
            files[table] = File(name, joined.num_rows, len(data), digest)
        return FileSet(
            epoch=now.epoch,
            blocks=tuple(sorted(now.blocks)),
            sequences=now.counts["sequences"],
            failures=now.counts["failures"],
            tokens=now.counts["tokens"],
            started=now.started,
            finished=time.time(),
            seconds=now.clock.seconds,
            tables=files,
            by=self.by | {"pid": os.getpid()},
        )


def parquet(table: pa.Table) -> bytes:
    """Encode a table as a Parquet file."""
    # Dictionaries suit text that repeats; numbers they make larger and slower to write.
    labels = [
        field.name
        for field in table.schema
        if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)
    ]
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=labels)
    return buffer.getvalue()


def _without_old_labels(table: pa.Table) -> pa.Table:
    """Drop labels that no row has any more, which would gather from sum to sum."""
    for place, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            texts = table.column(place).cast(column.type.value_type).combine_chunks()
            table = table.set_column(place, column, texts.dictionary_encode().cast(column.type))
    return table
