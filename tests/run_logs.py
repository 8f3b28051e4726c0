"""Harm to the log of a run in a local folder, or behind a URL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normlens.corpus import Run
from normlens.corpus.runs.entries import sealed
from normlens.corpus.runs.log import Log
from normlens.corpus.runs.log_reading import read_state


def forget(out: str | os.PathLike[str], *shards: int) -> None:
    """Make these shards of a run ones that are not done, as if it had been stopped before."""
    run = Run.open(out)
    state = read_state(run.folder, run.manifest)
    assert set(shards) <= set(state.done)
    Log.begin(run.folder, run.manifest, state.without(shards))


def entries_file(out: Path) -> Path:
    """The file of a log's entries that are not folded yet, of which there is one."""
    [path] = out.glob("log/*.jsonl")
    return path


def edit_entry(out: Path, number: int, edit: Callable[[str], str | None]) -> None:
    """Change the line of one entry, counted from 0; None removes it."""
    path = entries_file(out)
    lines: list[str | None] = [*path.read_text().splitlines()]
    lines[number] = edit(lines[number] or "")
    path.write_text("".join(f"{line}\n" for line in lines if line is not None))


def reseal(path: Path, manifest: str) -> None:
    """Write a file of a log as one under another manifest, with all checksums right."""
    first, _, rest = path.read_bytes().partition(b"\n")
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        path.write_bytes(b"".join(_resealed(line, manifest) for line in lines))
    else:
        path.write_bytes(_resealed(first.decode(), manifest) + rest)


def _resealed(line: str, manifest: str) -> bytes:
    fields: dict[str, Any] = json.loads(line)
    del fields["sha256"]
    return sealed(fields | {"manifest": manifest})
