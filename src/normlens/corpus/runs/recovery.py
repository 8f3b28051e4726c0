"""Recovering a run: the shards that it can keep, those to compute again, and what to clear away."""

from __future__ import annotations

import uuid

from normlens.corpus.runs.folder import TEMPORARY, Folder, RemoteFolder, RunError
from normlens.corpus.runs.log import Log, empty_state
from normlens.corpus.runs.log_files import ROOT as LOG
from normlens.corpus.runs.log_files import log_file
from normlens.corpus.runs.log_reading import read_state
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.shards import PARTS, ROOT, placed
from normlens.corpus.runs.side_files import CLAIM
from normlens.corpus.runs.state import State
from normlens.corpus.runs.verified import Verified


def already_begun(folder: Folder) -> RunError:
    """Another process begins a run in a store, or was stopped while it did."""
    return RunError(
        f"another process has begun a run in {str(folder)!r}, or was stopped while it did; "
        "wait for it, or choose another --out"
    )


def recover(folder: Folder, manifest: Manifest, *, verify: bool = False) -> State:
    """Read which shards can be kept; nothing is written or removed.

    The size of every file is compared. Files that `check` or a query has seen damaged
    are read again, wherever they lie; the others are compared with their checksums by whoever
    reads them, or here if `verify`. A sound shard that does not fit the run is refused.
    """
    state = read_state(folder, manifest, salvage=True)
    _check_fits(folder, manifest, state)
    wrong = _wrong_files(folder, state, verify)
    parts = [part for part in state.compacted if part.file.name in wrong]
    numbers = {place.number for name in wrong if (place := placed(name)) and not place.compacted}
    return state.without(numbers, parts)


def begin(folder: Folder, manifest: Manifest) -> Log:
    """Begin the log of a new run.

    On a disk, which is locked, what lies there without a manifest is of a run that was stopped
    before it began. On a store it may be of one that begins at this moment: the first to create the
    claim begins, and nothing is removed.
    """
    if not isinstance(folder, RemoteFolder):
        folder.remove_all([name for name in folder.names() if is_run_file(name)])
    elif not folder.create(CLAIM, uuid.uuid4().hex.encode()):
        raise already_begun(folder)
    return Log.begin(folder, manifest, empty_state(manifest))


def check_complete(folder: Folder, manifest: Manifest, log: Log) -> State:
    """Refuse to end a run whose log, files or manifest are no longer there."""
    try:
        same = Manifest.load(folder).digest == manifest.digest
    except RunError:
        same = False
    if not same:
        raise RunError(
            f"{MANIFEST} vanished from {str(folder)!r} or was changed while the run went on; the "
            "shards are done, put it back"
        )
    log.check()
    state = read_state(folder, manifest, salvage=True)
    lost = [*state.damaged, *_wrong_files(folder, state)]
    if state.epoch != log.epoch or len(state.done) < manifest.shards:
        lost.append("entries of its log")
    if lost:
        raise RunError(
            f"{len(lost)} files, such as {lost[0]}, vanished from {str(folder)!r} or were changed "
            f"while the run went on; compute them again with normlens run --resume {folder}"
        )
    return state


def sweep(folder: Folder, state: State) -> None:
    """Remove the files of a complete run that no record vouches for.

    They are of attempts that failed, of drivers that were stopped, and of shards that were
    compacted since. Files of a later epoch, and those that no run writes, stay.
    """
    keep = {file.name for table in state.records.tables for file in state.files(table)}
    halves = [name for name in folder.names(LOG) if name.endswith(TEMPORARY)]
    names = [*folder.names(ROOT), *folder.names(PARTS), *halves]
    folder.remove_all(
        [
            name
            for name in names
            if name not in keep
            and is_run_file(name)
            and ((place := placed(name)) is None or place.epoch <= state.epoch)
        ]
    )


def is_run_file(name: str) -> bool:
    """Whether a file has a name that only a run gives: a shard's or the log's, or half a file."""
    return placed(name) is not None or log_file(name) is not None or name.endswith(TEMPORARY)


def is_of_shards(name: str) -> bool:
    """Whether a file is there only after the first shard of a run was computed."""
    file = log_file(name)
    committed = file is not None and file.kind != "base"
    return committed or placed(name) is not None


def _wrong_files(folder: Folder, state: State, verify: bool = False) -> set[str]:
    """Find files that are missing or have another size, and those known to be damaged."""
    verified = Verified(folder)
    if verify:
        files = [file for table in state.records.tables for file in state.files(table)]
        return set(verified.wrong(files, again=True))
    suspects = verified.suspects()
    size_of = folder.size_of(ROOT, PARTS)
    wrong: set[str] = set()
    for table in state.records.tables:
        wrong |= {name for name, size in state.sizes(table) if size_of(name) != size}
        if any(f"/{table}/" in name for name in suspects):
            doubtful = [file for file in state.files(table) if file.name in suspects]
            wrong |= verified.wrong(doubtful, again=True).keys()
    return wrong


def _check_fits(folder: Folder, manifest: Manifest, state: State) -> None:
    """Check that shards fit the manifest, although the manifest's digest promises as much."""
    rows = state.records.rows
    sizes = rows["sequences"] + rows["failures"]
    for number, size in zip(rows["number"].tolist(), sizes.tolist(), strict=True):
        if number >= manifest.shards or size != manifest.size(number):
            raise RunError(
                f"shard {number} in {str(folder)!r} is sound but not of this run, which has "
                f"{manifest.shards} shards of {manifest.options.shard_size} sequences; move it away"
            )
