"""Recovering a run: the shards that it can keep, and those to compute again."""

from __future__ import annotations

from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.folder import TEMPORARY, Folder
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.shards import (
    Done,
    placed,
    record_name,
    recorded,
    survey,
    table_files,
)
from normlens.corpus.runs.verified import Verified


def recover(folder: Folder, manifest: Manifest) -> dict[int, Done]:
    """Find the shards that can be trusted, by number, and remove what was left half-written.

    That is files that were never completed, tables without a record (the run was stopped between
    the two), and shards that do not match their checksums. A sound shard is never removed: one that
    does not fit the run is refused, before anything is touched.
    """
    state = survey(folder, manifest)
    files = {n: told for done in state.done.values() for n, told in table_files(done).items()}
    wrong = Verified(folder).wrong(files, again=True)
    sound = {
        number: done
        for number, done in state.done.items()
        if wrong.keys().isdisjoint(table_files(done))
    }
    for done in sound.values():
        _check_fits(folder, manifest, done)
    keep = {file for done in sound.values() for file in table_files(done)}
    keep |= {record_name(number) for number in sound}
    # Records go first: a record must never outlive the files that it vouches for.
    for name in sorted(state.names, key=lambda name: recorded(name) is None):
        if name not in keep and is_run_file(name):
            folder.remove(name)
    return sound


def check_complete(folder: Folder, manifest: Manifest) -> None:
    """Refuse to end a run whose shards or manifest are no longer there."""
    try:
        same = Manifest.load(folder).digest == manifest.digest
    except RunError:
        same = False
    if not same:
        raise RunError(
            f"{MANIFEST} vanished from {str(folder)!r} or was changed while the run went on; the "
            "shards are done, put it back"
        )
    done = survey(folder, manifest).done
    files = {name: told for shard in done.values() for name, told in table_files(shard).items()}
    stamps = folder.stamps(list(files))
    lost = [
        name
        for name, told in files.items()
        if name not in stamps or stamps[name].size != told["bytes"]
    ]
    lost += [record_name(number) for number in range(manifest.shards) if number not in done]
    if lost:
        raise RunError(
            f"{len(lost)} files, such as {lost[0]}, vanished from {str(folder)!r} or were changed "
            f"while the run went on; compute them again with normlens run --resume {folder}"
        )


def is_run_file(name: str) -> bool:
    """Whether a file has a name that only a run gives: a record, a shard's table, half a file."""
    return recorded(name) is not None or placed(name) is not None or name.endswith(TEMPORARY)


def _check_fits(folder: Folder, manifest: Manifest, done: Done) -> None:
    """Check that a shard fits the manifest, although the manifest's digest promises as much."""
    fits = (
        done.number < manifest.shards
        and set(done.tables) == set(manifest.tables)
        and done.sequences + done.failures == manifest.size(done.number)
    )
    if not fits:
        raise RunError(
            f"shard {done.number} in {str(folder)!r} is sound but not of this run, which has "
            f"{manifest.shards} shards of {manifest.options.shard_size} sequences; move it away"
        )
