"""The work of a run's driver: blocks handed out, and files recorded as workers report them."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

from normlens.corpus.engines.pool import Pool
from normlens.corpus.runs.check import Verified
from normlens.corpus.runs.choice import Choice
from normlens.corpus.runs.data_index import IndexedData
from normlens.corpus.runs.folder import Folder, RunError
from normlens.corpus.runs.identity import digest
from normlens.corpus.runs.kept_pairs import save_kept_pairs
from normlens.corpus.runs.ledger import (
    Block,
    FileSet,
    Ledger,
    Lock,
    State,
    Unwritten,
    read_state,
    strays,
    wrong_files,
)
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.status import HeartbeatWriter
from normlens.errors import NormLensError, OutputError


def recovered(folder: Folder, manifest: Manifest, *, verify: bool = False) -> tuple[State, bool]:
    """Read which blocks can be kept, and whether there is nothing left to do; nothing is written.

    The size of every file is compared. Files that `check` or a query has seen damaged are read
    again; the others are compared with their checksums by whoever reads them, or here if `verify`.
    """
    state, stamps = read_state(folder, manifest, salvage=True), folder.stamps()
    wrong = wrong_files(state, stamps)
    verified = Verified(folder)
    suspects = verified.suspects()
    doubtful = [file for file in state.all_files() if verify or file.name in suspects]
    state = state.without([*wrong, *verified.wrong(doubtful, again=True)])
    is_whole = state.blocks_done == manifest.blocks and not state.damaged
    return state, is_whole and not strays(state, stamps, state.epoch)


@dataclass
class Driver:
    """A run in the hands of the process that has claimed it."""

    folder: Folder
    lock: Lock
    manifest: Manifest
    data: IndexedData
    pool: Pool
    ledger: Ledger
    progress: Progress

    def __post_init__(self) -> None:
        self._model = digest(self.manifest.model)
        self._deaths: Counter[int] = Counter()  # of workers, by block
        self._commits = False  # whether it is about to
        self._shown = bytearray(self.manifest.blocks)  # whether progress counts a block

    def finish(self, state: State, chosen: Choice, heartbeat: str | None) -> State:
        """Go on from a state that was read after the claim, until every block is done."""
        try:
            self._begin(state, chosen)
            with HeartbeatWriter(
                self.folder, self.manifest, state, self.ledger.epoch, heartbeat
            ) as heartbeat_writer:
                self.progress.start(self.manifest.sequences, state.sequences + state.failures)
                self._compute(heartbeat_writer)
                self.progress.stop()
            self.lock.check()
            return self._checked()
        except OutputError as error:
            raise OutputError(
                f"{error}; what is done is kept, go on with: normlens run --resume {self.folder}"
            ) from error

    def _begin(self, state: State, chosen: Choice) -> None:
        self._deaths.update(state.deaths)
        first = state.done(self.manifest.blocks).find(0)
        if self.pool.dies_with_workers and self.ledger.epoch > 1 and first >= 0:
            self._deaths[first] += 1  # which the process before may have died of
            self.pool.write_early()
        self.ledger.begin(replace(state, deaths=dict(self._deaths)))
        self.data.save(self.folder)
        save_kept_pairs(self.folder, self.manifest, chosen)

    def _compute(self, beat: HeartbeatWriter) -> None:
        def read(number: int) -> Block:
            start = time.perf_counter()
            records, first = self.data.block(number), number * self.manifest.options.block_size
            beat.handed_out(number)
            return Block(number, first, records, time.perf_counter() - start, self.ledger.epoch)

        try:
            for result in self.pool.compute(self.ledger.left(), read, self._deaths):
                if isinstance(result, Unwritten):
                    self._show(result, beat)
                else:
                    self._commit(result, beat)
        except (KeyboardInterrupt, NormLensError, MemoryError) as error:
            self.lock.check()  # where the folder is gone, that is what to say
            if not self._commits or isinstance(error, KeyboardInterrupt):
                with suppress(NormLensError, MemoryError):
                    for written in self.pool.rest():
                        self._commit(written, beat)
            if not isinstance(error, MemoryError) or isinstance(error, NormLensError):
                raise
            raise RunError(
                "there is not enough memory; what is done is kept: resume the run, with fewer "
                "--workers or a smaller --batch-size"
            ) from error

    def _commit(self, written: FileSet, beat: HeartbeatWriter) -> None:
        self._commits = True
        if written.by["model"] != self._model:
            raise RunError(
                f"the worker on {written.by['host']} has another model, or another kind of "
                "device, than the run began with; give every node the same and resume"
            )
        self.lock.check()
        deaths = {number: self._deaths[number] for number in written.blocks}
        told = {number: count for number, count in deaths.items() if count}
        written = replace(written, deaths=told)
        self.ledger.commit(written)
        self._commits = False
        beat.recorded(written)
        for number in written.blocks:
            self._show(Unwritten(number), beat)
        if written.failures:
            self.progress.advance(0, written.failures)

    def _show(self, block: Unwritten, beat: HeartbeatWriter) -> None:
        """Count a block once it is computed, and no longer if that is lost."""
        number, lost = block
        if self._shown[number] == lost:
            self._shown[number] = not lost
            count = self.manifest.size(number) * (-1 if lost else 1)
            beat.computed(number, count)
            self.progress.advance(count, 0)

    def _checked(self) -> State:
        """Refuse to end a run whose records, files or manifest are gone; remove what is stray."""
        try:
            same = Manifest.load(self.folder).digest == self.manifest.digest
        except RunError:
            same = False
        if not same:
            raise RunError(
                f"{MANIFEST} vanished from {str(self.folder)!r} or was changed while the run went "
                "on; the blocks are done, put it back"
            )
        self.ledger.check()
        state, stamps = read_state(self.folder, self.manifest, salvage=True), self.folder.stamps()
        lost = [*state.damaged, *wrong_files(state, stamps)]
        if state.epoch != self.ledger.epoch or state.blocks_done < self.manifest.blocks:
            lost.append("records")
        if lost:
            raise RunError(
                f"{len(lost)} files, such as {lost[0]}, vanished from {str(self.folder)!r} or were "
                "changed while the run went on; compute them again with normlens run --resume "
                f"{self.folder}"
            )
        self.ledger.sweep(state, stamps)
        return state
