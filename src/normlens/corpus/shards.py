"""Shards: a run's unit of work, of writing and of trust.

A shard is a range of consecutive sequences. Its tables are Parquet files; the last file written is
its record, with their checksums. A shard is done if its record is there and its files match it,
so whatever stops a run leaves shards that are done and shards that are not, and nothing between.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from normlens.corpus.folder import TEMPORARY, Folder
from normlens.corpus.manifest import Manifest
from normlens.corpus.records import Record
from normlens.json_text import parse_json

ROOT = "shards"
SUFFIX = ".parquet"
_FIELDS = {"rows", "bytes", "sha256"}


@dataclass(frozen=True)
class Shard:
    """Work to do: consecutive records and the running number of the first."""

    number: int
    first: int
    records: tuple[Record, ...]
    seconds: float = 0.0  # reading them


@dataclass(frozen=True)
class Finished:
    """A shard's results, as the bytes that its files will hold."""

    number: int
    files: dict[str, bytes]  # table → Parquet
    rows: dict[str, int]
    sequences: int  # analysed
    failures: int
    tokens: int
    started: float
    seconds: dict[str, float]  # stage → time
    by: dict[str, Any]  # host, device, versions, digest of the model


@dataclass(frozen=True)
class Done:
    """What the record of a finished shard says."""

    number: int
    sequences: int
    failures: int
    tokens: int
    started: float
    finished: float
    seconds: dict[str, float]
    tables: dict[str, dict[str, Any]]  # table → rows, bytes, sha256
    by: dict[str, Any] = field(default_factory=dict)


def stem(number: int) -> str:
    return f"shard-{number:06d}"


def record_name(number: int) -> str:
    return f"{ROOT}/{stem(number)}.json"


def table_name(table: str, number: int) -> str:
    return f"{ROOT}/{table}/{stem(number)}{SUFFIX}"


def commit(folder: Folder, shard: Finished) -> Done:
    """Write a shard's tables, and its record once they are on the disk."""
    start = time.perf_counter()
    for table, contents in shard.files.items():
        folder.write(table_name(table, shard.number), contents)
    writing = time.perf_counter() - start
    done = Done(
        number=shard.number,
        sequences=shard.sequences,
        failures=shard.failures,
        tokens=shard.tokens,
        started=shard.started,
        finished=time.time(),
        seconds={**shard.seconds, "writing": writing},
        tables={
            table: {
                "rows": shard.rows[table],
                "bytes": len(contents),
                "sha256": hashlib.sha256(contents).hexdigest(),
            }
            for table, contents in shard.files.items()
        },
        by=shard.by,
    )
    folder.write(record_name(shard.number), json.dumps(vars(done)).encode())
    return done


def records(folder: Folder, names: Collection[str] | None = None) -> Iterator[Done]:
    """The shards that have a record, whether or not their files still match it."""
    for name in folder.names() if names is None else names:
        number = _recorded(name)
        if number is None:
            continue
        done = _read_record(folder, name)
        if done is not None and done.number == number:
            yield done


def recover(folder: Folder, manifest: Manifest) -> dict[int, Done]:
    """The shards that can be trusted, by number; whatever else lies there is removed.

    That is files that were never completed, tables without a record (the run was stopped between
    the two), and shards that no longer match their checksums.
    """
    names = folder.names()
    found = {done.number: done for done in records(folder, names)}
    good = {number: done for number, done in found.items() if _is_sound(folder, manifest, done)}
    keep = {table_name(table, number) for number in good for table in manifest.tables}
    keep |= {record_name(number) for number in good}
    inside = [name for name in names if name.startswith(f"{ROOT}/")]
    # Records go first: a record must never outlive the files that it vouches for.
    for name in sorted(inside, key=lambda name: _recorded(name) is None):
        if name not in keep:
            folder.remove(name)
    for name in names:
        if name.endswith(TEMPORARY) and name not in inside:
            folder.remove(name)
    return good


def _is_sound(folder: Folder, manifest: Manifest, done: Done) -> bool:
    if not 0 <= done.number < manifest.shards or set(done.tables) != set(manifest.tables):
        return False
    if done.sequences + done.failures != manifest.size(done.number):
        return False
    return all(
        _matches(folder.read(table_name(table, done.number)), expected)
        for table, expected in done.tables.items()
    )


def _matches(contents: bytes | None, expected: dict[str, Any]) -> bool:
    return (
        contents is not None
        and len(contents) == expected["bytes"]
        and hashlib.sha256(contents).hexdigest() == expected["sha256"]
    )


def _recorded(name: str) -> int | None:
    """The number of the shard whose record has this name."""
    folder, _, file = name.rpartition("/")
    number = file.removeprefix("shard-").removesuffix(".json")
    if folder == ROOT and number.isdecimal() and name == record_name(int(number)):
        return int(number)
    return None


def _read_record(folder: Folder, name: str) -> Done | None:
    contents = folder.read(name)  # a store that fails says nothing about the shard
    try:
        done = Done(**parse_json(contents or b""))
        counts = (done.number, done.sequences, done.failures, done.tokens)
        times = (done.started, done.finished, *done.seconds.values())
        whole = (
            all(type(count) is int and count >= 0 for count in counts)
            and all(type(time) in (int, float) for time in times)
            and all(set(expected) >= _FIELDS for expected in done.tables.values())
        )
        return done if whole else None
    except (ValueError, TypeError, AttributeError):
        return None  # cut short or edited; the shard counts as not done
