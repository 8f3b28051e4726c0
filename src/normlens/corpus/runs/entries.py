"""Entries of a run's log as lines of JSON, each with a checksum of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from normlens.corpus.runs.shards import (
    PARTS,
    Attempt,
    Compacted,
    Done,
    Entry,
    File,
    placed,
    table_name,
)
from normlens.errors import parse_json

#: Numbers of a record that are counted, and must not be texts or negative.
_COUNTS = ("number", "epoch", "attempt", "sequences", "failures", "tokens")


def checksum(fields: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of a JSON object, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def sealed(fields: Mapping[str, Any]) -> bytes:
    """Write a JSON object as a line that ends with its checksum."""
    return json.dumps({**fields, "sha256": checksum(fields)}).encode() + b"\n"


def unsealed(line: bytes) -> dict[str, Any]:
    """Read a line of `sealed`, or raise a ValueError."""
    fields = parse_json(line)
    if not isinstance(fields, dict) or fields.pop("sha256", None) != checksum(fields):
        raise ValueError("it does not match its checksum")
    return fields


def entry_line(entry: Entry, manifest: str, epoch: int) -> bytes:
    """Write an entry under the digest of a manifest and the epoch of the driver that commits it."""
    return sealed({"kind": _kind(entry), "manifest": manifest, "by_epoch": epoch, **_fields(entry)})


def parse_entry(line: bytes) -> tuple[Entry, str, int]:
    """Read an entry with its manifest's digest and its driver's epoch, or raise a ValueError."""
    try:
        fields = unsealed(line)
        kind, manifest = fields.pop("kind"), str(fields.pop("manifest"))
        epoch = int(fields.pop("by_epoch"))
        return _PARSERS[kind](fields), manifest, epoch
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no entry ({error})") from error


def compacted_fields(entry: Compacted) -> dict[str, Any]:
    """Describe a compacted file as JSON."""
    return {
        "table": entry.table,
        "first": entry.first,
        "last": entry.last,
        "file": list(entry.file),
    }


def parse_compacted(fields: Mapping[str, Any]) -> Compacted:
    """Read what `compacted_fields` wrote, or raise a ValueError."""
    entry = Compacted(str(fields["table"]), fields["first"], fields["last"], _file(*fields["file"]))
    place = placed(entry.file.name)
    sound = (
        all(type(n) is int and n >= 0 for n in (entry.first, entry.last))
        and entry.first <= entry.last
        and place is not None
        and place.compacted
        and place.table == entry.table
        # The name decides which file is read.
        and entry.file.name.startswith(f"{PARTS}/")
    )
    if not sound:
        raise ValueError("it describes no compacted file")
    return entry


def check_done(done: Done) -> Done:
    """Give back a record if its parts have the types that a run relies on; else a ValueError."""
    counts = [getattr(done, name) for name in _COUNTS]
    times = (done.started, done.finished, *done.seconds.values())
    sound = (
        all(type(count) is int and 0 <= count < 1 << 63 for count in counts)
        and all(type(time) in (int, float) for time in times)
        and all(type(stage) is str for stage in done.seconds)
        and all(table.isidentifier() for table in done.tables)
        and isinstance(done.by, dict)
    )
    if not sound:
        raise ValueError("it is no shard's record")
    return done


# Fields by kind -----------------------------------------------------------------------------------


def _kind(entry: Entry) -> str:
    return {Done: "shard", Attempt: "attempt", Compacted: "compacted"}[type(entry)]


def _fields(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, Compacted):
        return compacted_fields(entry)
    if isinstance(entry, Attempt):
        return dict(vars(entry))
    # Names of files follow from the rest.
    tables = {table: list(file)[1:] for table, file in entry.tables.items()}
    return {**vars(entry), "tables": tables}


def parse_done(fields: dict[str, Any]) -> Done:
    mark = (fields["number"], fields["epoch"], fields["attempt"])
    if not all(type(count) is int and count >= 0 for count in mark):
        raise ValueError("it is no shard's record")
    tables = {
        table: _file(table_name(table, *mark), *told) for table, told in fields["tables"].items()
    }
    return check_done(Done(**{**fields, "tables": tables}))


def _parse_attempt(fields: dict[str, Any]) -> Attempt:
    entry = Attempt(**fields)
    if not all(type(n) is int and n >= 0 for n in (entry.number, entry.attempt)):
        raise ValueError("it counts no attempt")
    return entry


def _file(name: str, rows: int, size: int, sha256: str) -> File:
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in (rows, size)):
        raise ValueError("it describes no file")
    if len(bytes.fromhex(sha256)) != hashlib.sha256().digest_size:
        raise ValueError("it has no SHA-256")
    return File(name, rows, size, sha256)


_PARSERS: dict[str, Callable[[dict[str, Any]], Entry]] = {
    "shard": parse_done,
    "attempt": _parse_attempt,
    "compacted": parse_compacted,
}
