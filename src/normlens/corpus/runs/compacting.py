"""Compacting a run that nobody works on: ``normlens compact``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from normlens.corpus.runs.compaction import Compaction, DamagedFile
from normlens.corpus.runs.compaction_plan import Sizes
from normlens.corpus.runs.folder import Folder, LocalFolder, RunError
from normlens.corpus.runs.lock import locked
from normlens.corpus.runs.log import Log
from normlens.corpus.runs.log_reading import read_state
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.options import check_file_size
from normlens.corpus.runs.recovery import sweep
from normlens.corpus.runs.shards import Compacted
from normlens.errors import OptionError


@dataclass(frozen=True)
class Compacting:
    """How many files held a run's tables before, and how many do now."""

    before: int
    after: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.before == self.after:
            return f"{self.before} files, none of which are to be joined"
        return f"{self.before} files became {self.after}"


def compact(folder: Folder, manifest: Manifest, megabytes: float) -> Compacting:
    """Join the files of all shards that are done, and remove those that nothing vouches for.

    Damaged files are left as they are, and raised when the others are joined.
    """
    check_file_size(megabytes)
    sizes = Sizes.of(megabytes)
    if sizes is None:
        raise OptionError("file_size", "{option} is the size of the files in MB; give more than 0")
    with locked(folder) as lock:
        state = read_state(folder, manifest)
        if len(state.done) < manifest.shards and not isinstance(folder, LocalFolder):
            raise RunError(
                f"the run in {str(folder)!r} is not done, and whoever works on it cannot be seen "
                "there; it compacts its files itself, go on with it: normlens run --resume "
                f"{folder}"
            )
        before = state.file_count
        log = Log.begin(folder, manifest, state)

        def commit(entry: Compacted) -> None:
            lock.check()
            log.append([entry])
            log.check()

        compaction = Compaction(folder, manifest, state, log.epoch, commit, sizes)
        damaged = _all_joined(compaction)
        state = read_state(folder, Manifest.load(folder))
        sweep(folder, state)
    if damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise RunError(f"{damaged[0]}{more}; the other files are compacted")
    return Compacting(before, state.file_count)


def _all_joined(compaction: Compaction) -> list[DamagedFile]:
    """Join until nothing is left to join; the files that could not be."""
    damaged: list[DamagedFile] = []
    while True:
        try:
            if not compaction.step(rest=True):
                return damaged
        except DamagedFile as error:
            damaged.append(error)
