"""The work of a run's driver: blocks handed out, and files recorded as workers report them."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

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
from normlens.corpus.runs.status import Watching
from normlens.errors import NormLensError, OutputError


def recovered(folder: Folder, manifest: Manifest, *, verify: bool = False) -> tuple[State, bool]:
    """Read which blocks can be kept, and whether there is nothing left to do; nothing is written.

    The size of every file is compared. Files that `check` or a query has seen damaged are read
    again; the others are compared with their checksums by whoever reads them, or here if `verify`.
    """
    state, sizes = read_state(folder, manifest, salvage=True), folder.sizes()
    wrong = wrong_files(state, sizes)
    verified = Verified(folder)
    suspects = verified.suspects()
    doubtful = [file for file in state.all_files() if verify or file.name in suspects]
    state = state.without([*wrong, *verified.wrong(doubtful, again=True)])
    is_whole = state.blocks_done == manifest.blocks and not state.damaged
    return state, is_whole and not strays(state, sizes, state.epoch)


class Driver:
    """A run in the hands of the process that has claimed it."""

    def __init__(
        self,
        folder: Folder,
        lock: Lock,
        manifest: Manifest,
        data: IndexedData,
        pool: Pool,
        ledger: Ledger,
        progress: Progress,
    ):
        self.folder, self.lock, self.manifest, self.data = folder, lock, manifest, data
        self.pool, self.ledger, self.progress = pool, ledger, progress
        self._model = digest(manifest.model)
        self._deaths: Counter[int] = Counter()  # of workers, by block
        self._commits = False  # whether it is about to
        self._shown: dict[int, Unwritten] = {}  # blocks that progress counts and no record yet does

    def finish(self, state: State, chosen: Choice, heartbeat: str | None) -> State:
        """Go on from a state that was read after the claim, until every block is done."""
        try:
            self._begin(state, chosen)
            with Watching(
                self.folder, self.manifest, state, self.ledger.epoch, heartbeat
            ) as watching:
                self.progress.start(self.manifest.sequences, state.sequences + state.failures)
                self._compute(watching)
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

    def _compute(self, watching: Watching) -> None:
        def read(number: int) -> Block:
            start = time.perf_counter()
            records, first = self.data.block(number), number * self.manifest.options.block_size
            watching.handed_out(number)
            return Block(number, first, records, time.perf_counter() - start, self.ledger.epoch)

        try:
            for result in self.pool.compute(self.ledger.left(), read, self._deaths):
                if isinstance(result, Unwritten):
                    self._show(result, watching)
                else:
                    self._commit(result, watching)
        except (KeyboardInterrupt, NormLensError, MemoryError) as error:
            self.lock.check()  # where the folder is gone, that is what to say
            if not self._commits or isinstance(error, KeyboardInterrupt):
                with suppress(NormLensError, MemoryError):
                    for written in self.pool.rest():
                        self._commit(written, watching)
            if not isinstance(error, MemoryError) or isinstance(error, NormLensError):
                raise
            raise RunError(
                "there is not enough memory; what is done is kept: resume the run, with fewer "
                "--workers or a smaller --batch-size"
            ) from error

    def _commit(self, written: FileSet, watching: Watching) -> None:
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
        watching.finished(written)
        shown = [self._shown.pop(number, Unwritten(number, 0, 0)) for number in written.blocks]
        sequences = written.sequences - sum(kept.sequences for kept in shown)
        failures = written.failures - sum(kept.failures for kept in shown)
        if sequences or failures:
            self._advance(sequences, failures, watching)

    def _show(self, kept: Unwritten, watching: Watching) -> None:
        """Count a block as soon as it is computed, and no longer if that is lost."""
        if self._shown.pop(kept.block, None) is None:
            self._shown[kept.block] = kept
        self._advance(kept.sequences, kept.failures, watching)

    def _advance(self, sequences: int, failures: int, watching: Watching) -> None:
        watching.computed(sequences + failures)
        self.progress.advance(sequences + failures, failures)

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
        state, sizes = read_state(self.folder, self.manifest, salvage=True), self.folder.sizes()
        lost = [*state.damaged, *wrong_files(state, sizes)]
        if state.epoch != self.ledger.epoch or state.blocks_done < self.manifest.blocks:
            lost.append("records")
        if lost:
            raise RunError(
                f"{len(lost)} files, such as {lost[0]}, vanished from {str(self.folder)!r} or were "
                "changed while the run went on; compute them again with normlens run --resume "
                f"{self.folder}"
            )
        self.ledger.sweep(state, sizes)
        return state
