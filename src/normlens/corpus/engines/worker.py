"""The work of one process with one model: from a block's records to its tables."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from normlens.corpus.data.records import Record
from normlens.corpus.engines.batches import (
    ModelRows,
    check_masking,
    check_stacks,
    check_tokenizer,
    encode_for,
    explained,
    no_maps,
)
from normlens.corpus.engines.block_rows import (
    Analysed,
    BlockRows,
    Clock,
    Entry,
    Gatherer,
    Prepared,
    batches,
)
from normlens.corpus.engines.guard import Guard, Late, Unfinished
from normlens.corpus.measures import Measure, ModelMeasure, Needs
from normlens.corpus.runs import identity
from normlens.corpus.runs.choice import made
from normlens.corpus.runs.folder import open_folder
from normlens.corpus.runs.ledger import Block, FileSet, Unwritten, check_same_folder
from normlens.corpus.runs.options import FILE_MINUTES, FILE_SIZE, RunOptions
from normlens.errors import InputError, NormLensError
from normlens.inputs.text import Encoded
from normlens.lens import Lens
from normlens.loading.load import load
from normlens.models.base import read_head
from normlens.options import AnalysisOptions
from normlens.pipeline.batches import affordable
from normlens.results.explanation import Explanation
from normlens.results.maps import Maps
from normlens.scopes import components_of, resolve_all

# The work of one process with one model: from a block's records to its tables.


LARGEST_BATCH = 64  # of Lens, where it chooses
#: Tokens that fill a GPU: those of a largest batch of sequences of 128 tokens.
FILLED = LARGEST_BATCH * 128


@dataclass(frozen=True)
class Task:
    """The instructions of a worker, which are sent to other processes and machines."""

    options: RunOptions
    measures: tuple[str | Measure, ...]
    folder: str  # of the run: a URL, or a path that every worker sees
    lock: str | None = None  # the token by which a worker recognises a folder on a disk
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int | str = "auto"
    trust_remote_code: bool = False
    threads: int | None = None  # of torch; None: as it likes
    sequence_timeout: float | None = None  # seconds; None: none
    file_size: float = FILE_SIZE  # MB of rows after which they are written,
    file_minutes: float = FILE_MINUTES  # or minutes


class Worker:
    """A model and the measures to take with it.

    A block passes three stages: `prepare`, `analyse`, and its tables being gathered. The first and
    the last may run in any threads. Only the one that made the worker may `analyse`: OpenMP keeps a
    team of threads for every thread that calls torch, and two teams on the same cores slow each
    other down.
    """

    def __init__(self, task: Task, lens: Lens | None = None):
        if task.threads is not None:
            torch.set_num_threads(task.threads)
        self.task = task
        self.guard = Guard(task.sequence_timeout)
        self.folder = open_folder(task.folder)
        check_same_folder(self.folder, task.lock)
        self.lens = _load(task) if lens is None else lens
        self.measures = made(task.measures, self.lens.two_stacks)
        check_stacks(self.lens, self.measures)
        self.needs = Needs(scopes=(), arrays=False)
        for measure in self.measures:
            self.needs |= measure.needs
        # A GPU ranks maps faster than it gives them away; on a CPU measures rank for themselves.
        self.ranks_on_device = self.needs.correlations and self.lens.device.type == "cuda"
        self.arrays = self.needs.arrays or not self.ranks_on_device
        behind = self.needs.asked is not None or any(
            isinstance(measure, ModelMeasure) for measure in self.measures
        )
        self.identity = identity.identify(self.lens, head=behind)
        self.by = {
            **identity.machine(self.lens),
            "model": identity.digest(self.identity),
            "versions": identity.software(),
        }
        check_tokenizer(self.lens)
        check_masking(task.options, self.lens)
        if self.needs.asked is not None:
            read_head(self.lens.adapter)  # a model without a head is refused before the run begins
        if self._reaches_feed_forward():
            # Always, and with the same limit everywhere: a resumed run, and every worker of it,
            # must come to the same digits. A copy, because the caller's lens stays as it is.
            self.lens = copy.copy(self.lens).prepare()
            self.lens.weights_are_steady = True
        self.model_rows = ModelRows(
            self.measures, self.lens, task.batch_size, task.options.seed, self.guard
        )
        self.gatherer = Gatherer(
            self.folder, self.measures, self.by, task.file_size, task.file_minutes
        )

    # One block ----------------------------------------------------------------------------------

    def prepare(self, block: Block) -> Prepared:
        """Tokenise and mask a block's records."""
        prepared = self.begin(block)
        with prepared.clock.on("tokenising"):
            for index, record in enumerate(block.records, block.first):
                entry = self.encode(index, record, prepared.rows)
                prepared.entries.extend(() if entry is None else (entry,))
        return prepared

    def begin(self, block: Block) -> Prepared:
        """A block before any of its sequences is read."""
        clock, rows = Clock(), BlockRows(self.measures, self.guard)
        clock.seconds["reading"] = block.seconds
        started = time.time() - block.seconds
        return Prepared(replace(block, records=()), [], rows, clock, started)

    def encode(self, index: int, record: Record, rows: BlockRows) -> Entry | None:
        """Tokenise and mask one record; where that fails, the reason is among the rows."""
        try:
            encoded = self.guard.call(
                lambda: encode_for(self.lens, record, self.task.options, self.needs), index, [0]
            )
        except (InputError, Unfinished) as error:
            rows.fail(index, record.id, str(error).removeprefix(f"{record.id}: "))
            return None
        return Entry(index, replace(encoded, id=record.id))

    def analyse(self, prepared: Prepared) -> None:
        """Compute maps and measures, batch by batch."""
        clock, rows = prepared.clock, prepared.rows
        for batch in self._batches(prepared.entries):
            with clock.on("maps"):
                results = self._analyse(batch)
            measured = self.model_rows.of(batch, results, clock)
            with clock.on("measures"):
                for entry, result, ready in zip(batch, results, measured, strict=True):
                    if isinstance(result, str) or isinstance(ready, str):
                        reason = result if isinstance(result, str) else ready
                        rows.fail(entry.index, entry.encoded.id, str(reason))
                    else:
                        maps, explanations = result
                        seed = self.task.options.seed
                        rows.add(entry.index, entry.encoded, maps, seed, explanations, ready)

    def _batches(self, entries: list[Entry]) -> Iterator[list[Entry]]:
        """Cut a block into batches for the lens."""
        size = self.task.batch_size
        if size == "auto":
            size = 1 if self.lens.device.type == "cpu" else LARGEST_BATCH
        return batches(entries, int(size), self._bytes, self._filled())

    def _filled(self) -> int:
        """Tokens up to which a batch has more sequences than the lens would choose.

        Memory grows faster than a sequence's length: where a largest batch of longer sequences fits
        on the device, any batch of shorter ones with as many tokens does. What is free at the
        moment does not count, so that batches, and last digits with them, are always the same.
        """
        chosen = self.task.batch_size != "auto"
        if chosen or self.lens.two_stacks or self.lens.device.type == "cpu":
            return 0
        fits = affordable(self.lens, FILLED // LARGEST_BATCH) >= LARGEST_BATCH
        return FILLED if fits else 0

    def _bytes(self, n: int) -> int:
        """Estimate the memory of one sequence's maps: its scopes, allowed pairs and statistics."""
        if not self.arrays:
            return self.lens.n_layers * n * n
        item = 8 if self.task.dtype == "float64" else 4
        return self.lens.n_layers * n * n * item * (len(self.lens.scopes) + 2)

    def _analyse(self, batch: list[Entry]) -> list[Analysed | str]:
        """Compute each sequence's maps and explanations, or the reason why it has none."""
        try:
            return self.guard.call(
                lambda: self._analysed(batch), batch[0].index, [len(entry) for entry in batch]
            )
        except NormLensError as error:
            if len(batch) == 1:
                return [str(error)]
        # One of them spoils the batch for all; alone, each answers for itself.
        return [result for entry in batch for result in self._analyse([entry])]

    def _analysed(self, batch: list[Entry]) -> list[Analysed | str]:
        items = [entry.encoded for entry in batch]
        encoded = (entry.encoded for entry in batch)
        maps = self._maps(items) if self.needs.maps else [*map(no_maps, encoded)]
        return list(zip(maps, self._explanations(items), strict=True))

    def _explanations(self, items: Sequence[Encoded]) -> list[tuple[Explanation, ...]]:
        if self.needs.asked is None:
            return [()] * len(items)
        return explained(self.lens, items, self.needs.asked, self.task.batch_size)

    def _maps(self, items: Sequence[Encoded]) -> list[Maps]:
        size = self.task.batch_size
        if size == "auto" and len(items) > LARGEST_BATCH:
            size = len(items)  # of a batch of short sequences, which fits as it is
        options = AnalysisOptions(
            scopes=self.needs.scopes,
            statistics=self.needs.statistics,
            heads=self.needs.heads,
            precision=self.task.options.precision,
            batch_size=size if size == "auto" else int(size),
        )
        return self.lens.analyse(
            items, options, arrays=self.arrays, correlations=self.ranks_on_device
        )

    def _reaches_feed_forward(self) -> bool:
        """Whether a scope behind a feed-forward block is asked for, or what is measured of one."""
        wanted = resolve_all(self.needs.scopes, self.lens.scopes)
        return self.needs.statistics or any("FF" in components_of(scope) for scope in wanted)


def _load(task: Task) -> Lens:
    return load(
        task.options.model,
        device=task.device,
        dtype=task.dtype,
        revision=task.options.revision,
        trust_remote_code=task.trust_remote_code,
    )


# Where a worker works: several blocks at different stages, or one block sequence by sequence.


#: Threads that call the model on a GPU: one launches its kernels while the other packs up and
#: measures what has come back.
ON_GPU = 2


class Station:
    """A worker and its threads; every method may be called from any thread.

    The methods between `begin` and `finish` go through one block sequence by sequence. Whoever
    calls them knows at which sequence the process died.
    """

    def __init__(self, worker: Worker, model: Executor | None = None):
        self.worker = worker
        self._model = model or executor(model_threads(worker.lens))
        self._open: _Opened | None = None

    @classmethod
    def load(cls, task: Task) -> Station:
        """Load the model in the thread that will call it.

        OpenMP keeps a team of threads for every thread that calls torch, and two teams on the same
        cores slow each other down. A GPU's kernels have no such teams.
        """
        thread = executor(1)
        worker = thread.submit(Worker, task).result()
        if model_threads(worker.lens) == 1:
            return cls(worker, thread)
        thread.shutdown()
        return cls(worker)

    def describe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The identity of the model, and where it runs."""
        return self.worker.identity, self.worker.by

    def pulse(self) -> tuple[Late | None, float]:
        """A sequence that takes too long, and the seconds that what is at work may take."""
        return self.worker.guard.late(), self.worker.guard.longest()

    def compute(self, block: Block, alone: bool = False) -> FileSet | Unwritten:
        """Compute every table of a block, and gather its rows or write what was gathered."""
        prepared = self.worker.prepare(block)
        self._model.submit(self.worker.analyse, prepared).result()
        return self.worker.gatherer.add(prepared, alone)

    def write(self) -> FileSet | None:
        """Write what was gathered of finished blocks."""
        return self.worker.gatherer.write()

    # Sequence by sequence -------------------------------------------------------------------------

    def begin(self, block: Block, culprits: Mapping[int, str]) -> None:
        """Begin with a block; `culprits` are sequences that fail, with their reasons."""
        prepared = self.worker.begin(block)
        for index, reason in culprits.items():
            prepared.rows.fail(index, block.records[index - block.first].id, reason)
        self._open = _Opened(block, prepared, {})

    def encode(self, index: int) -> int | None:
        """Tokenise a sequence; its length, or None if that failed."""
        opened = self._opened()
        record = opened.block.records[index - opened.block.first]
        with opened.prepared.clock.on("tokenising"):
            entry = self.worker.encode(index, record, opened.prepared.rows)
        if entry is None:
            return None
        opened.entries[index] = entry
        return len(entry)

    def analyse(self, index: int) -> None:
        """Compute the maps and measures of a sequence."""
        opened = self._opened()
        alone = replace(opened.prepared, entries=[opened.entries.pop(index)])
        self._model.submit(self.worker.analyse, alone).result()

    def finish(self) -> FileSet | Unwritten:
        """Write the tables of the block that was begun."""
        opened, self._open = self._opened(), None
        return self.worker.gatherer.add(opened.prepared, alone=True)

    def close(self) -> None:
        """Let the threads go."""
        self._model.shutdown(wait=self.worker.guard.late() is None, cancel_futures=True)

    def _opened(self) -> _Opened:
        assert self._open is not None, "no block was begun"
        return self._open


def model_threads(lens: Lens) -> int:
    """How many threads call the model."""
    return 1 if lens.device.type == "cpu" else ON_GPU


def executor(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="normlens-model")


@dataclass(frozen=True)
class _Opened:
    """A block that is gone through sequence by sequence."""

    block: Block
    prepared: Prepared
    entries: dict[int, Entry]  # those that are tokenised and not yet analysed
