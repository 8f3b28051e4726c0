"""The work of a run: shards computed by an engine and committed as they come."""

from __future__ import annotations

from collections.abc import Iterator

from normlens.corpus.engines.base import Engine
from normlens.corpus.runs.data_index import IndexedData
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.folder import Folder
from normlens.corpus.runs.identity import digest
from normlens.corpus.runs.lock import Lock
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.plan import shards_to_do
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.recovery import check_complete
from normlens.corpus.runs.shards import Done, Finished, commit
from normlens.errors import NormLensError, OutputError


def compute_shards(
    folder: Folder,
    lock: Lock,
    manifest: Manifest,
    data: IndexedData,
    engine: Engine,
    done: dict[int, Done],
    progress: Progress,
) -> None:
    """Compute every shard that is not done and commit it; the run is complete afterwards."""
    counts = [shard.sequences + shard.failures for shard in done.values()]
    progress.start(manifest.sequences, sum(counts))
    expected = digest(manifest.model)
    for shard in _memory_checked(engine.compute(shards_to_do(data, manifest, done))):
        if shard.by["model"] != expected:
            raise RunError(
                f"the worker on {shard.by['host']} has another model, or another kind of device, "
                "than the run began with; give every node the same and resume"
            )
        lock.check()
        try:
            commit(folder, manifest, shard)
        except OutputError as error:
            raise OutputError(
                f"{error}; what is done is kept, go on with: normlens run --resume {folder}"
            ) from error
        progress.advance(shard.sequences + shard.failures, shard.failures)
    lock.check()
    check_complete(folder, manifest)


def _memory_checked(shards: Iterator[Finished]) -> Iterator[Finished]:
    """The shards; running out of memory says how to go on."""
    try:
        yield from shards
    except MemoryError as error:
        if isinstance(error, NormLensError):
            raise
        raise RunError(
            "there is not enough memory; what is done is kept: resume the run, with fewer "
            "--workers or a smaller --batch-size"
        ) from error
