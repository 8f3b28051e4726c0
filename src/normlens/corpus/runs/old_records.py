"""Records of runs from before there was a log: one file for each shard, `shards/shard-….json`."""

from __future__ import annotations

import re

from normlens.corpus.runs.entries import checksum, parse_done
from normlens.corpus.runs.folder import Folder, another_manifest
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.shards import BEFORE_LOG, ROOT, Done
from normlens.errors import parse_json

_NAME = re.compile(r"shards/shard-(\d{6,})\.json")


def recorded(name: str) -> int | None:
    """Find the number of the shard whose record has this name."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def read_old_records(folder: Folder, manifest: Manifest) -> tuple[list[Done], list[str]]:
    """List and read the records of an old run; return them and the names of damaged ones.

    A record of another manifest is refused: the manifest was exchanged, or two runs are mixed.
    """
    records: list[Done] = []
    damaged: list[str] = []
    names = [name for name in folder.names(ROOT) if recorded(name) is not None]
    for name, contents in sorted(folder.read_all(names).items()):
        parsed = _parsed(contents, recorded(name))
        if parsed is None:
            damaged.append(name)
            continue
        done, digest = parsed
        if digest != manifest.digest:
            raise another_manifest(folder, name)
        records.append(done)
    return records, damaged


def _parsed(contents: bytes, number: int | None) -> tuple[Done, str] | None:
    """Read a shard's record and its manifest's digest; None if it is cut short or edited."""
    try:
        fields = parse_json(contents)
        if fields.pop("sha256") != checksum(fields) or fields["number"] != number:
            return None
        digest = str(fields.pop("manifest"))
        tables = {
            table: [told["rows"], told["bytes"], told["sha256"]]
            for table, told in fields["tables"].items()
        }
        return parse_done({**fields, "tables": tables, "epoch": BEFORE_LOG, "attempt": 0}), digest
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
