"""Shards: a run's unit of work, of writing and of trust.

A shard is a range of consecutive sequences. Its tables are Parquet files, which the worker that
computed it writes where they belong; then its record, with their sizes and checksums, goes to the
run's log. A shard is done if the log has its record and the files match it, so whatever stops a run
leaves shards that are done and shards that are not, and nothing between.

The name of a file carries the epoch (the number of the driver that handed the shard out) and the
attempt, so no two workers write to one name, and what a record vouches for is never written again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from normlens.corpus.data.records import Record

ROOT = "shards"
PARTS = "tables"
SUFFIX = ".parquet"

_FILE = re.compile(r"shards/(\w+)/shard-(\d{6,})\.(\d+)-\d+\.parquet")
_PART = re.compile(r"tables/(\w+)/part-(\d{6,})\.(\d+)\.parquet")


class File(NamedTuple):
    """A file that a record vouches for."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """Work to do: consecutive records and the running number of the first."""

    number: int
    first: int
    records: tuple[Record, ...]
    seconds: float = 0.0  # reading them
    epoch: int = 1  # of the driver that hands it out
    attempt: int = 1  # how often that driver has handed it out by now


@dataclass(frozen=True)
class Done:
    """The record of a finished shard: its worker hands it back, and the log keeps it."""

    number: int
    epoch: int
    attempt: int
    sequences: int  # analysed
    failures: int
    tokens: int
    started: float
    finished: float
    seconds: dict[str, float]  # stage → time
    tables: dict[str, File]
    by: dict[str, Any] = field(default_factory=dict)  # host, device, versions, digest of the model


#: What a worker hands back.
Finished = Done


@dataclass(frozen=True)
class Attempt:
    """A shard that was handed out and did not come back."""

    number: int
    attempt: int
    reason: str = ""


@dataclass(frozen=True)
class Compacted:
    """A file that holds one table of the shards from `first` to `last`, instead of theirs."""

    table: str
    first: int
    last: int  # included
    file: File


#: What a log holds.
Entry = Done | Attempt | Compacted


def stem(number: int) -> str:
    return f"shard-{number:06d}"


def table_name(table: str, number: int, epoch: int, attempt: int) -> str:
    """Name the file of one table of a shard."""
    return f"{ROOT}/{table}/{stem(number)}.{epoch}-{attempt}{SUFFIX}"


def part_name(table: str, number: int, epoch: int) -> str:
    """Name a compacted file of a table."""
    return f"{PARTS}/{table}/part-{number:06d}.{epoch}{SUFFIX}"


class Place(NamedTuple):
    """What the name of a run's file says."""

    table: str
    number: int  # of the shard, or of the part
    epoch: int
    compacted: bool


def placed(name: str) -> Place | None:
    """Read the name of a shard's or a compacted file; None for any other."""
    if (match := _FILE.fullmatch(name)) is not None:
        table, number, epoch = match.groups()
        return Place(table, int(number), int(epoch), compacted=False)
    if (match := _PART.fullmatch(name)) is not None:
        table, number, epoch = match.groups()
        return Place(table, int(number), int(epoch), compacted=True)
    return None
