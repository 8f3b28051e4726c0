"""The work of one process with one model: from a block's records to its tables."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import torch

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.engines.batches import (
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
    measured,
)
from normlens.corpus.engines.guard import Guard, Late, Unfinished
from normlens.corpus.measures import Item, Measure, ModelMeasure, Needs
from normlens.corpus.runs import identity
from normlens.corpus.runs.choice import made
from normlens.corpus.runs.folder import open_folder
from normlens.corpus.runs.ledger import Block, FileSet, Unwritten, check_same_folder
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.errors import InputError, NormLensError
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
    execution: Execution = field(default_factory=Execution)
    threads: int | None = None  # of torch; None: as it likes


def on_device(task: Task, device: str) -> Task:
    return replace(task, execution=replace(task.execution, device=device))


#: Threads that call the model on a GPU: one launches its kernels while the other packs up and
#: measures what has come back.
ON_GPU = 2


class Worker:
    """A model and the measures to take with it; every method may be called from any thread.

    A block passes three stages: `prepare`, `analyse`, and its tables being gathered. Only one
    thread may `analyse` on a CPU: OpenMP keeps a team of threads for every thread that calls torch,
    and two teams on the same cores slow each other down. A GPU's kernels have no such teams.
    """

    def __init__(self, task: Task, lens: Lens | None = None):
        if task.threads is not None:
            torch.set_num_threads(task.threads)
        self.task, self.execution = task, task.execution
        self.guard = Guard(self.execution.sequence_timeout)
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
        running = [measure for measure in self.measures if isinstance(measure, ModelMeasure)]
        behind = self.needs.asked is not None or bool(running)
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
        size = self.execution.batch_size
        self.bound = {each.name: each.bind(self.lens, size) for each in running}
        limits = self.execution.file_size, self.execution.file_minutes
        self.gatherer = Gatherer(self.folder, self.measures, self.by, *limits)
        self.model = ThreadPoolExecutor(model_threads(self.lens), "normlens-model")

    @classmethod
    def load(cls, task: Task) -> Worker:
        """Load the model in the thread that will call it, if it is only one."""
        thread = ThreadPoolExecutor(1, "normlens-model")
        worker = thread.submit(cls, task).result()
        if model_threads(worker.lens) == 1:
            worker.model = thread
        return worker

    def describe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The identity of the model, and where it runs."""
        return self.identity, self.by

    def pulse(self) -> tuple[Late | None, float]:
        """A sequence that takes too long, and the seconds that what is at work may take."""
        return self.guard.late(), self.guard.longest()

    def compute(
        self, block: Block, alone: bool = False, culprits: Mapping[int, str] | None = None
    ) -> FileSet | Unwritten:
        """Compute every table of a block, and gather its rows or write what was gathered.

        With `culprits` (sequences that fail, and why), batches have one sequence each.
        """
        prepared = self.prepare(block, culprits)
        self.model.submit(self.analyse, prepared).result()
        return self.gatherer.add(prepared, alone)

    def probe(self, block: Block) -> None:
        """Compute the tables of a block, to see whether that can be done."""
        prepared = self.prepare(block)
        self.model.submit(self.analyse, prepared).result()
        prepared.rows.tables()

    def write(self) -> FileSet | None:
        """Write what was gathered of finished blocks."""
        return self.gatherer.write()

    def close(self) -> None:
        """Let the threads go."""
        self.model.shutdown(wait=self.guard.late() is None, cancel_futures=True)

    # The stages of a block ------------------------------------------------------------------------

    def prepare(self, block: Block, culprits: Mapping[int, str] | None = None) -> Prepared:
        """Tokenise and mask a block's records; where that fails, the reason is among the rows."""
        rows, clock, entries = BlockRows(self.measures, self.guard), Clock(), list[Entry]()
        clock.seconds["reading"] = block.seconds
        started = time.time() - block.seconds
        with clock.on("tokenising"):
            for index, record in enumerate(block.records, block.first):
                if culprits and index in culprits:
                    rows.fail(index, record.id, culprits[index])
                    continue
                encode = partial(encode_for, self.lens, record, self.task.options, self.needs)
                try:
                    encoded = self.guard.call(encode, index, [0])
                except (InputError, Unfinished) as error:
                    rows.fail(index, record.id, str(error).removeprefix(f"{record.id}: "))
                else:
                    entries.append(Entry(index, replace(encoded, id=record.id)))
        groups = self._batches(entries) if culprits is None else batches(entries, 1, self._bytes)
        return Prepared(replace(block, records=()), list(groups), rows, clock, started)

    def analyse(self, prepared: Prepared) -> None:
        """Compute maps and measures, batch by batch."""
        clock, rows = prepared.clock, prepared.rows
        for batch in prepared.batches:
            with clock.on("maps"):
                results = self._analyse(batch)
            items: dict[int, Item] = {}
            tables: dict[int, dict[str, pa.Table]] = {}
            for entry, result in zip(batch, results, strict=True):
                index, encoded = entry.index, entry.encoded
                if isinstance(result, str):
                    rows.fail(index, encoded.id, result)
                    continue
                maps, explanations = result
                seed = self.task.options.seed
                items[index] = Item(encoded.id, index, maps, encoded, seed, explanations)
                tables[index] = {}
            for measure in self.measures:
                bound = self.bound.get(measure.name)
                made = measured(measure, bound, list(items.values()), clock, self.guard)
                for item, its_rows in zip(list(items.values()), made, strict=True):
                    if isinstance(its_rows, str):
                        rows.fail(item.index, item.sequence, f"{measure.name}: {its_rows}")
                        del items[item.index]  # a sequence is in all tables or in none
                    else:
                        tables[item.index] |= its_rows
            with clock.on("measures"):
                for item in items.values():
                    rows.add(item, tables[item.index])

    def _batches(self, entries: list[Entry]) -> Iterator[list[Entry]]:
        """Cut a block into batches for the lens."""
        size = self.execution.batch_size
        if size == "auto":
            size = 1 if self.lens.device.type == "cpu" else LARGEST_BATCH
        return batches(entries, int(size), self._bytes, self._filled())

    def _filled(self) -> int:
        """Tokens up to which a batch has more sequences than the lens would choose.

        Memory grows faster than a sequence's length: where a largest batch of longer sequences fits
        on the device, any batch of shorter ones with as many tokens does. What is free at the
        moment does not count, so that batches, and last digits with them, are always the same.
        """
        chosen = self.execution.batch_size != "auto"
        if chosen or self.lens.two_stacks or self.lens.device.type == "cpu":
            return 0
        fits = affordable(self.lens, FILLED // LARGEST_BATCH) >= LARGEST_BATCH
        return FILLED if fits else 0

    def _bytes(self, n: int) -> int:
        """Estimate the memory of one sequence's maps: its scopes, allowed pairs and statistics."""
        if not self.arrays:
            return self.lens.n_layers * n * n
        item = 8 if self.execution.dtype == "float64" else 4
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
        asked, size = self.needs.asked, self.execution.batch_size
        maps = self._maps(items) if self.needs.maps else [no_maps(item) for item in items]
        none: list[tuple[Explanation, ...]] = [()] * len(items)
        answers = none if asked is None else explained(self.lens, items, asked, size)
        return list(zip(maps, answers, strict=True))

    def _maps(self, items: Sequence[EncodedRecord]) -> list[Maps]:
        size = self.execution.batch_size
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
        device=task.execution.device,
        dtype=task.execution.dtype,
        revision=task.options.revision,
        trust_remote_code=task.execution.trust_remote_code,
    )


def model_threads(lens: Lens) -> int:
    """How many threads call the model."""
    return 1 if lens.device.type == "cpu" else ON_GPU
