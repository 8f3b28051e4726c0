"""The work of a run: shards computed by an engine and committed as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from normlens.corpus.engines.base import Engine
from normlens.corpus.runs.data_index import IndexedData
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.folder import Folder
from normlens.corpus.runs.identity import digest
from normlens.corpus.runs.lock import Lock
from normlens.corpus.runs.log import Log, State
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.plan import Numbers, shards_to_do
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.recovery import check_complete, sweep
from normlens.corpus.runs.shards import Done
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
) -> None:
    """Compute every shard that is not done and commit it; the run is complete afterwards."""
    progress.start(manifest.sequences, state.sequences + state.failures)
    expected = digest(manifest.model)
    # Numbers alone: where the files of finished shards lie is for readers to know.
    done = Numbers(state.numbers)
    left = shards_to_do(data, manifest, done, log.epoch)
    del state
    for shards in _grouped(_explained(engine.compute(left), folder), engine):
        for shard in shards:
            if shard.by["model"] != expected:
                raise RunError(
                    f"the worker on {shard.by['host']} has another model, or another kind of "
                    "device, than the run began with; give every node the same and resume"
                )
        lock.check()
        with _resumable(folder):
            log.append(shards)
        for shard in shards:
            progress.advance(shard.sequences + shard.failures, shard.failures)
    lock.check()
    state = check_complete(folder, manifest, log)
    # Only a driver or a worker that was stopped leaves anything; the store need not be listed.
    if log.epoch > 1 or state.attempts or not manifest.has_log:
        sweep(folder, state)


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
