"""Harm to the records of a run in a local folder, or behind a URL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normlens.corpus import Run
from normlens.corpus.runs.ledger import Ledger, State, read_state, sealed


def state_of(run: Run, salvage: bool = False) -> State:
    return read_state(run.folder, run.manifest, salvage=salvage)


def blocks_done(run: Run, salvage: bool = False) -> set[int]:
    records = state_of(run, salvage).records.values()
    return {number for record in records for number in record.blocks}


def forget(out: str | os.PathLike[str], *blocks: int) -> None:
    """Make these blocks of a run ones that are not done, as if it had been stopped before."""
    run = Run.open(out)
    state = state_of(run)
    assert set(blocks) <= blocks_done(run)
    gone = [
        file.name
        for record in state.records.values()
        if set(blocks) & set(record.blocks)
        for file in record.tables.values()
    ]
    Ledger.claim(run.folder, run.manifest).begin(state.without(gone))


def table_file(out: Path, table: str, block: int = 0) -> Path:
    """The file of a table that begins with a block."""
    [path] = out.glob(f"tables/{table}/{block:06d}-*.parquet")
    return path


def record_file(out: Path, number: int = 1, epoch: int = 1) -> Path:
    return out / f"records/{epoch}-{number:06d}.json"


def edit_record(out: Path, number: int, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change a record, with a checksum that fits what it says afterwards."""
    path = record_file(out, number)
    fields = json.loads(path.read_bytes())
    del fields["sha256"]
    edit(fields)
    path.write_bytes(sealed(fields))


def reseal(path: Path, manifest: str) -> None:
    """Write a claim or a record as one under another manifest, with all checksums right."""
    fields: dict[str, Any] = json.loads(path.read_bytes())
    del fields["sha256"]
    path.write_bytes(sealed(fields | {"manifest": manifest}))
