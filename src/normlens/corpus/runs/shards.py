"""Shards: a run's unit of work, of writing and of trust.

A shard is a range of consecutive sequences. Its tables are Parquet files; the last file written is
its record, with their checksums, its own, and the digest of the manifest that it was computed
under. A shard is done if its record is there and its files match it, so whatever stops a run leaves
shards that are done and shards that are not, and nothing between.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from normlens.corpus.data.records import Record
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.folder import Folder
from normlens.corpus.runs.manifest import Manifest
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
    """The record of a finished shard."""

    number: int
    sequences: int
    failures: int
    tokens: int
    started: float
    finished: float
    seconds: dict[str, float]
    tables: dict[str, dict[str, Any]]  # table → rows, bytes, sha256
    manifest: str  # its digest
    by: dict[str, Any] = field(default_factory=dict)


def stem(number: int) -> str:
    return f"shard-{number:06d}"


def record_name(number: int) -> str:
    return f"{ROOT}/{stem(number)}.json"


def table_name(table: str, number: int) -> str:
    return f"{ROOT}/{table}/{stem(number)}{SUFFIX}"


def table_files(done: Done) -> dict[str, dict[str, Any]]:
    """List the files that a record vouches for, by name, with their size and checksum."""
    return {table_name(table, done.number): told for table, told in done.tables.items()}


def commit(folder: Folder, manifest: Manifest, shard: Finished) -> Done:
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
        manifest=manifest.digest,
        by=shard.by,
    )
    record = {**vars(done), "sha256": _checksum(vars(done))}
    folder.write(record_name(shard.number), json.dumps(record).encode())
    return done


@dataclass(frozen=True)
class Survey:
    """The contents of a run's folder at one moment."""

    names: list[str]
    done: dict[int, Done]  # shards by number, in order, whether or not their files still match
    damaged: list[str]  # records that cannot be trusted


def survey(folder: Folder, manifest: Manifest) -> Survey:
    """List every file, and read the records among them.

    A record of another manifest is refused: the manifest was exchanged, or two runs are mixed.
    """
    state = Survey(folder.names(), {}, [])
    for name in state.names:
        number = recorded(name)
        contents = None if number is None else folder.read(name)
        if number is None or contents is None:  # another process may just have removed it
            continue
        done = _parsed(contents, number)
        if done is None:
            state.damaged.append(name)
            continue
        if done.manifest != manifest.digest:
            raise RunError(
                f"{name} in {str(folder)!r} belongs to another manifest.json than the one that "
                "lies there; put the run's own back"
            )
        state.done[number] = done
    return state


def placed(name: str) -> tuple[str, int] | None:
    """Find the table and the number of the shard whose file has this name."""
    root, _, rest = name.partition("/")
    table, _, file = rest.partition("/")
    number = file.removeprefix("shard-").removesuffix(SUFFIX)
    if root == ROOT and number.isdecimal() and name == table_name(table, int(number)):
        return table, int(number)
    return None


def recorded(name: str) -> int | None:
    """Find the number of the shard whose record has this name."""
    folder, _, file = name.rpartition("/")
    number = file.removeprefix("shard-").removesuffix(".json")
    if folder == ROOT and number.isdecimal() and name == record_name(int(number)):
        return int(number)
    return None


def _parsed(contents: bytes, number: int) -> Done | None:
    """Read a shard's record; None if it is cut short, edited or another shard's."""
    try:
        record = parse_json(contents)
        checksum = record.pop("sha256")
        done = Done(**record)
        counts = (done.number, done.sequences, done.failures, done.tokens)
        times = (done.started, done.finished, *done.seconds.values())
        whole = (
            all(type(count) is int and count >= 0 for count in counts)
            and all(type(time) in (int, float) for time in times)
            and all(
                table.isidentifier() and set(told) >= _FIELDS for table, told in done.tables.items()
            )
        )
        return done if whole and done.number == number and checksum == _checksum(record) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
