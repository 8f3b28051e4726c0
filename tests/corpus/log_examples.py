"""A manifest, and records of shards that nobody computed, for tests of the log."""

from __future__ import annotations

import hashlib
from typing import Any

from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.options import RunOptions
from normlens.corpus.runs.shards import Compacted, Done, File, part_name, table_name
from normlens.corpus.runs.state import State

TABLES = ("sequences", "failures", "mixing")
SHARD_SIZE = 2


def made_up_manifest(shards: int, tables: tuple[str, ...] = TABLES) -> Manifest:
    described = {"measure": None, "columns": {"index": "int64"}, "order": ["index"]}
    return Manifest(
        options=RunOptions(model="m", data="d", measures=("mixing",), shard_size=SHARD_SIZE),
        model={"name": "m", "device": "cpu", "dtype": "float32"},
        data={"name": "d", "fingerprint": "f", "sequences": shards * SHARD_SIZE},
        tables={table: {**described, "merged": False} for table in tables},
        measures={"mixing": {"options": {}, "source": None}},
        execution={},
        versions={"normlens": "0"},
        machine={},
        created="2020-01-01",
    )


def made_up_file(name: str) -> File:
    contents = name.encode()
    return File(name, len(name), len(contents), hashlib.sha256(contents).hexdigest())


def made_up_record(
    number: int, epoch: int = 1, attempt: int = 1, tables: tuple[str, ...] = TABLES, **fields: Any
) -> Done:
    files = {table: made_up_file(table_name(table, number, epoch, attempt)) for table in tables}
    told: dict[str, Any] = {
        "sequences": SHARD_SIZE,
        "failures": 0,
        "tokens": 10 + number,
        "started": 100.0 + number,
        "finished": 101.5 + number,
        "seconds": {"maps": 0.5, f"stage {number % 3}": 0.25},
        "by": {"host": f"node{number % 2}", "pid": number % 5},
    }
    return Done(number, epoch, attempt, tables=files, **(told | fields))


def made_up_part(table: str, first: int, last: int, number: int = 0, epoch: int = 1) -> Compacted:
    return Compacted(table, first, last, made_up_file(part_name(table, number, epoch)))


def names_of(state: State, table: str) -> list[str]:
    return [file.name for file in state.files(table)]
