"""The work of a run: shards computed by an engine and committed as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from normlens.corpus.engines.base import Attempts, Engine
from normlens.corpus.runs.background_compaction import BackgroundCompaction, NoCompaction
from normlens.corpus.runs.compaction import Compaction
from normlens.corpus.runs.compaction_plan import Sizes
from normlens.corpus.runs.data_index import IndexedData
from normlens.corpus.runs.folder import Folder, LocalFolder, RunError
from normlens.corpus.runs.identity import digest
from normlens.corpus.runs.lock import Lock
from normlens.corpus.runs.log import Log
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.plan import Numbers, shards_to_do
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.recovery import check_complete, sweep
from normlens.corpus.runs.shards import Attempt, Compacted, Done
from normlens.corpus.runs.state import State
from normlens.errors import NormLensError, OutputError

#: Records that are committed together at most.
TOGETHER = 64


def compute_shards(
    folder: Folder,
    lock: Lock,
    manifest: Manifest,
    data: IndexedData,
    engine: Engine,
    log: Log,
    state: State,
    progress: Progress,
    sizes: Sizes | None = None,
) -> State:
    """Compute every shard that is not done and commit it; the state of the run, then complete.

    Files are joined to some of these `sizes` meanwhile; None leaves them as workers write them.
    """
    progress.start(manifest.sequences, state.sequences + state.failures)
    expected = digest(manifest.model)
    # Numbers alone: where the files of finished shards lie is for readers to know.
    done = Numbers(state.numbers)
    left = shards_to_do(data, manifest, done, log.epoch)

    def keep(number: int, attempt: int, reason: str) -> None:
        lock.check()
        with _resumable(folder):
            log.append([Attempt(number, attempt, reason)])

    attempts = Attempts(state.attempts, keep, resumed=log.epoch > 1)
    compaction = _compaction(folder, lock, manifest, log, state, sizes)
    del state
    with compaction:
        for shards in _grouped(_explained(engine.compute(left, attempts), folder), engine):
            for shard in shards:
                if shard.by["model"] != expected:
                    raise RunError(
                        f"the worker on {shard.by['host']} has another model, or another kind of "
                        "device, than the run began with; give every node the same and resume"
                    )
            lock.check()
            with _resumable(folder):
                log.append(shards)
            compaction.add(shards)
            for shard in shards:
                progress.advance(shard.sequences + shard.failures, shard.failures)
        if problem := compaction.finish():
            progress.say(f"note: some files were not compacted: {problem}")
    lock.check()
    state = check_complete(folder, manifest, log)
    # A driver or a worker that was stopped leaves files that nobody needs, and so does a compaction
    # that met a problem or joined files of a store. Otherwise there are none.
    joined = bool(state.compacted) and not isinstance(folder, LocalFolder)
    if log.epoch > 1 or state.attempts or problem or joined:
        with _resumable(folder):
            sweep(folder, state)
    return state


def _compaction(
    folder: Folder, lock: Lock, manifest: Manifest, log: Log, state: State, sizes: Sizes | None
) -> NoCompaction:
    if sizes is None:
        return NoCompaction()

    def commit(entry: Compacted) -> None:
        lock.check()
        log.append([entry])
        # What a driver appends that is no longer the last one does not count, and it must not
        # remove what the next one relies on.
        log.check()

    return BackgroundCompaction(Compaction(folder, manifest, state, log.epoch, commit, sizes))


def _grouped(shards: Iterator[Done], engine: Engine) -> Iterator[list[Done]]:
    """Put together what is there at one moment: it is committed at once."""
    group: list[Done] = []
    for shard in shards:
        group.append(shard)
        if len(group) == TOGETHER or not engine.has_result():
            yield group
            group = []
    if group:
        yield group


@contextmanager
def _resumable(folder: Folder) -> Iterator[None]:
    """Raise what a full disk or a store raises with the way to go on."""
    try:
        yield
    except OutputError as error:
        raise OutputError(
            f"{error}; what is done is kept, go on with: normlens run --resume {folder}"
        ) from error


def _explained(shards: Iterator[Done], folder: Folder) -> Iterator[Done]:
    """The shards; running out of disk or memory says how to go on."""
    try:
        with _resumable(folder):
            yield from shards
    except MemoryError as error:
        if isinstance(error, NormLensError):
            raise
        raise RunError(
            "there is not enough memory; what is done is kept: resume the run, with fewer "
            "--workers or a smaller --batch-size"
        ) from error
