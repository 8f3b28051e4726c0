"""One state of a run for several questions, although its files may be compacted meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from normlens.corpus.runs.folder import Folder, RunError
from normlens.corpus.runs.log_reading import read_state
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.shards import File
from normlens.corpus.runs.state import State
from normlens.corpus.runs.verified import Verified
from normlens.errors import InputError

Answer = TypeVar("Answer")

#: How often a question is asked again because files were compacted meanwhile.
TRIES = 5


class UnreadableFile(RunError, InputError):
    """A file of a run cannot be read, or is not what its record says."""


class Snapshot:
    """The shards that were done at one moment, and the files that hold their tables now.

    Compaction replaces files and leaves the rows. If the run has gone on by then, the new files
    hold rows of later shards, too: a snapshot that `moves_on` takes those in, another is over.
    """

    def __init__(self, folder: Folder, manifest: Manifest, *, moves_on: bool = False):
        self.folder, self.manifest, self.moves_on = folder, manifest, moves_on
        self.state = self._read()

    @property
    def complete(self) -> bool:
        """Whether every shard of the run is in it."""
        return len(self.state.done) == self.manifest.shards

    def files(self, table: str) -> list[File]:
        return self.state.files(table)

    def verify(self, files: Sequence[File]) -> None:
        """Raise an error unless all of these files match their checksums."""
        verified = Verified(self.folder)
        wrong = verified.wrong(files)
        verified.forget_others(self.state)
        if wrong:
            raise _refused(self.folder, wrong)

    def asked(self, ask: Callable[[], Answer]) -> Answer:
        """Ask a question; once more if its files are gone because others have replaced them."""
        for _ in range(TRIES):
            try:
                return ask()
            except UnreadableFile:
                if not self._renewed():
                    raise
        raise RunError(
            f"the files of {str(self.folder)!r} are compacted faster than they can be read; ask "
            "again when the run is done"
        )

    def _renewed(self) -> bool:
        """Take over the files of now; False if they are those of before."""
        then, now = self.state, self._read()
        tables = self.manifest.tables
        if all(now.files(table) == then.files(table) for table in tables):
            return False
        if not self.moves_on and not np.array_equal(now.numbers, then.numbers):
            raise RunError(
                f"the run in {str(self.folder)!r} went on and its files were compacted, so that "
                "this snapshot of it is gone; take a new one"
            )
        self.state = now
        return True

    def _read(self) -> State:
        state = read_state(self.folder, self.manifest)
        if not state.done:
            raise InputError(
                f"no shard of {str(self.folder)!r} is done yet; see: normlens status {self.folder}"
            )
        if parts := state.incomplete_parts:
            # Its table would answer for shards that others lack.
            raise RunError(
                f"{parts[0].file.name} in {str(self.folder)!r} holds shards of which other tables "
                "were lost; the tables answer again when these are computed: normlens run --resume "
                f"{self.folder}"
            )
        return state


def _refused(folder: Folder, wrong: Mapping[str, str]) -> UnreadableFile:
    name, what = next(iter(wrong.items()))
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return UnreadableFile(
        f"{name} in {str(folder)!r} is {what}{more}; see all with normlens check {folder}, compute "
        f"them again with normlens run --resume {folder}"
    )
