"""The files of a run's log.

    log/EPOCH.TOKEN.base                 all that counted when a driver took over
    log/EPOCH.TOKEN.FIRST-LAST.fold      entries of that driver, folded into columns
    log/EPOCH.TOKEN.FIRST.jsonl          entries that are not folded yet

A driver counts its entries from 0. Only the files of the newest epoch count: what a driver of an
older one still writes after another has taken over is in none of them. The token tells two drivers
apart that take over at the same moment (both withdraw).

A base or a fold is a line of JSON with a checksum of its own, which says what the bytes behind it
hold and which checksum they have. A file of entries is lines of JSON, each with a checksum.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from normlens.corpus.runs.entries import compacted_fields, parse_compacted, sealed, unsealed
from normlens.corpus.runs.record_columns import RecordColumns
from normlens.corpus.runs.shards import Compacted

ROOT = "log"
FORMAT = "normlens-log"
_NAME = re.compile(r"log/(\d{6,})\.([0-9a-f]+)\.(?:(base)|(\d+)-(\d+)\.fold|(\d+)\.jsonl)")


class LogFile(NamedTuple):
    """A file of the log, as its name tells."""

    name: str
    epoch: int
    token: str
    kind: str  # base, fold or entries
    first: int = 0
    last: int = 0  # excluded; known of a fold


def log_file(name: str) -> LogFile | None:
    """Read the name of a log's file; None for any other."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    epoch, token, base, first, last, start = match.groups()
    if base:
        return LogFile(name, int(epoch), token, "base")
    if start is not None:
        return LogFile(name, int(epoch), token, "entries", int(start))
    return LogFile(name, int(epoch), token, "fold", int(first), int(last))


def base_name(epoch: int, token: str) -> str:
    return f"{ROOT}/{epoch:06d}.{token}.base"


def fold_name(epoch: int, token: str, first: int, last: int) -> str:
    return f"{ROOT}/{epoch:06d}.{token}.{first:08d}-{last:08d}.fold"


def entries_name(epoch: int, token: str, first: int) -> str:
    return f"{ROOT}/{epoch:06d}.{token}.{first:08d}.jsonl"


class Folded(NamedTuple):
    """The contents of a base or a fold."""

    columns: list[RecordColumns]
    attempts: dict[int, int]
    compacted: list[Compacted]


def folded_bytes(
    manifest: str,
    epoch: int,
    columns: Sequence[RecordColumns],
    attempts: Mapping[int, int],
    compacted: Sequence[Compacted],
) -> bytes:
    """Write a base or a fold under the digest of a manifest."""
    bodies = [part.as_buffer() for part in columns]
    head = {
        "format": FORMAT,
        "version": 1,
        "manifest": manifest,
        "by_epoch": epoch,
        "attempts": {str(number): count for number, count in attempts.items()},
        "compacted": [compacted_fields(part) for part in compacted],
        "columns": [
            {**part.described(), "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            for part, body in zip(columns, bodies, strict=True)
        ],
    }
    return b"".join([sealed(head), *bodies])


def parse_folded(contents: bytes) -> tuple[Folded, str, int]:
    """Read a base or a fold with its manifest's digest and its epoch, or raise a ValueError."""
    end = contents.find(b"\n")
    if end < 0:
        raise ValueError("it is cut short")
    try:
        head = unsealed(contents[:end])
        if (head["format"], head["version"]) != (FORMAT, 1):
            raise ValueError("it is of another kind")
        columns = []
        rest = memoryview(contents)[end + 1 :]  # columns may be large: they are not copied
        for described in head["columns"]:
            body, rest = rest[: described["bytes"]], rest[described["bytes"] :]
            if hashlib.sha256(body).hexdigest() != described["sha256"]:
                raise ValueError("its columns do not match their checksum")
            columns.append(RecordColumns.parsed(described, body))
        if rest:
            raise ValueError("there is more in it than it says")
        folded = Folded(columns, _attempts(head), [*map(parse_compacted, head["compacted"])])
        return folded, str(head["manifest"]), int(head["by_epoch"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no part of a log ({error})") from error


def _attempts(head: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): int(count) for number, count in head["attempts"].items()}
