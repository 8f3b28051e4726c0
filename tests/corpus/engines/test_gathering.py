"""The rows of several blocks become one set of files, whenever and however they come together."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normlens.corpus.engines.block_rows import Clock, Gatherer, Prepared
from normlens.corpus.measures import get
from normlens.corpus.measures.base import build
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.ledger import Block, FileSet, Unwritten

ROWS = 50  # of a block
TABLES = get("norms").tables


@dataclass
class Rows:
    """The rows of a block, as if its sequences had been measured."""

    made: dict[str, pa.Table]
    sequences: int = ROWS
    failures: int = 1
    tokens: int = 7

    def tables(self) -> dict[str, pa.Table]:
        return self.made


def prepared(number: int) -> Any:
    index = np.arange(number * ROWS, (number + 1) * ROWS)
    norms = {"index": index, "sequence": "s", "layer": 0, "ff_output_norm": index * 0.1}
    sums = {"layer": 0, "dimension": np.arange(4), "sequences": 1, "count": 2}
    sums |= {"sum_input_abs": np.full(4, 0.1 * number), "sum_output_abs": np.full(4, 1e-3)}
    sums |= {"gamma": 1.0, "special": False}
    made = {
        "norms": build(TABLES["norms"], {**norms, "bypassed_norm": 1.0}),
        "norms_dimensions": build(TABLES["norms_dimensions"], sums),
    }
    clock = Clock()
    clock.seconds["maps"] = 1.0
    return Prepared(Block(number, number * ROWS, ()), [], Rows(made), clock, time.time())  # type: ignore[arg-type]


def gatherer(folder: Path, megabytes: float = 1.0, minutes: float = 1e9) -> Gatherer:
    return Gatherer(LocalFolder(folder), [get("norms")], {"host": "here"}, megabytes, minutes)


def read(folder: Path, written: FileSet, table: str) -> pa.Table:
    file = written.tables[table]
    found = pq.read_table(folder / file.name)
    assert found.num_rows == file.rows
    assert (folder / file.name).stat().st_size == file.bytes
    return found


def test_blocks_that_come_in_any_order_lie_in_theirs(tmp_path: Path) -> None:
    made, numbers = gatherer(tmp_path), list(range(9))
    random.Random(0).shuffle(numbers)
    kept = [made.add(prepared(number)) for number in numbers]
    assert kept == [Unwritten(number) for number in numbers]
    written = made.write()
    assert written is not None
    assert written.blocks == tuple(range(9))
    assert (written.sequences, written.failures, written.tokens) == (9 * ROWS, 9, 63)
    assert written.seconds["maps"] == 9.0
    assert read(tmp_path, written, "norms")["index"].to_pylist() == list(range(9 * ROWS))
    # Sums are exact, so it does not matter which came first: each key has one row.
    sums = read(tmp_path, written, "norms_dimensions")
    assert sums["dimension"].to_pylist() == [0, 1, 2, 3]
    assert sums["count"].to_pylist() == [18] * 4
    assert [float(value) for value in sums["sum_input_abs"].to_pylist()] == [3.6] * 4
    assert made.write() is None


def test_a_set_is_written_when_it_is_large_enough(tmp_path: Path) -> None:
    size = sum(table.nbytes for table in prepared(0).rows.tables().values())
    made = gatherer(tmp_path, megabytes=3.5 * size / (1 << 20))
    reported = [made.add(prepared(number)) for number in range(12)]
    sets = [each.blocks for each in reported if isinstance(each, FileSet)]
    assert sets
    assert 3 <= len(sets[0]) <= 5
    rest = made.write()
    numbers = [number for blocks in sets for number in blocks] + list(rest.blocks if rest else ())
    assert numbers == list(range(12))


@pytest.mark.parametrize("limits", [{"megabytes": 0.0}, {"minutes": 0.0}])
def test_without_a_size_or_time_every_block_is_written(
    tmp_path: Path, limits: dict[str, float]
) -> None:
    made = gatherer(tmp_path, **limits)
    for number in range(3):
        written = made.add(prepared(number))
        assert isinstance(written, FileSet)
        assert written.blocks == (number,)


def test_a_block_alone_leaves_the_others_where_they_are(tmp_path: Path) -> None:
    made = gatherer(tmp_path)
    made.add(prepared(0))
    alone = made.add(prepared(1), alone=True)
    assert isinstance(alone, FileSet)
    assert alone.blocks == (1,)
    rest = made.write()
    assert rest is not None
    assert rest.blocks == (0,)


def test_after_a_death_sets_grow(tmp_path: Path) -> None:
    made = gatherer(tmp_path)
    made.most = 1
    reported = [made.add(prepared(number)) for number in range(15)]
    assert [len(each.blocks) for each in reported if isinstance(each, FileSet)] == [1, 2, 4, 8]
