"""Where a worker works: several shards at different stages, or one shard sequence by sequence."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from normlens.corpus.engines.guard import Late
from normlens.corpus.engines.prepared import Clock, Entry, Prepared
from normlens.corpus.engines.shard_rows import ShardRows
from normlens.corpus.engines.worker import Task, Worker
from normlens.corpus.runs.shards import Finished, Shard
from normlens.lens import Lens

#: Shards that a worker holds: one is tokenised and one becomes tables while the model works on the
#: third.
EACH = 3
#: Threads that call the model on a GPU: one launches its kernels while the other packs up and
#: measures what has come back.
ON_GPU = 2


class Station:
    """A worker and its threads; every method may be called from any thread.

    The methods between `begin` and `finish` go through one shard sequence by sequence. Whoever
    calls them knows at which sequence the process died.
    """

    def __init__(self, worker: Worker, model: ThreadPoolExecutor | None = None):
        self.worker = worker
        self._model = model or _executor(model_threads(worker.lens))
        self._open: _Opened | None = None

    @classmethod
    def load(cls, task: Task) -> Station:
        """Load the model in the thread that will call it.

        OpenMP keeps a team of threads for every thread that calls torch, and two teams on the same
        cores slow each other down. A GPU's kernels have no such teams.
        """
        thread = _executor(1)
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

    def compute(self, shard: Shard) -> Finished:
        """Compute every table of a shard."""
        prepared = self.worker.prepare(shard)
        self._model.submit(self._analyse, prepared).result()
        return self.worker.finish(prepared)

    # Sequence by sequence -------------------------------------------------------------------------

    def begin(self, shard: Shard, culprits: Mapping[int, str]) -> None:
        """Begin with a shard; `culprits` are sequences that fail, with their reasons."""
        rows = ShardRows(self.worker.measures, self.worker.guard)
        for index, reason in culprits.items():
            rows.fail(index, shard.records[index - shard.first].id, reason)
        clock = Clock()
        clock.seconds["reading"] = shard.seconds
        begun = time.time() - shard.seconds
        prepared = Prepared(replace(shard, records=()), [], rows, clock, begun)
        self._open = _Opened(shard, prepared, {})

    def encode(self, index: int) -> int | None:
        """Tokenise a sequence; its length, or None if that failed."""
        opened = self._opened()
        record = opened.shard.records[index - opened.shard.first]
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
        self._model.submit(self._analyse, alone).result()

    def finish(self) -> Finished:
        """Build the tables of the shard that was begun."""
        opened, self._open = self._opened(), None
        return self.worker.finish(opened.prepared)

    def close(self) -> None:
        """Let the threads go."""
        self._model.shutdown(wait=self.worker.guard.late() is None, cancel_futures=True)

    def _opened(self) -> _Opened:
        assert self._open is not None, "no shard was begun"
        return self._open

    def _analyse(self, prepared: Prepared) -> None:
        for _ in self.worker.analyse(prepared):
            pass


def model_threads(lens: Lens) -> int:
    """How many threads call the model."""
    return 1 if lens.device.type == "cpu" else ON_GPU


def _executor(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="normlens-model")


@dataclass(frozen=True)
class _Opened:
    """A shard that is gone through sequence by sequence."""

    shard: Shard
    prepared: Prepared
    entries: dict[int, Entry]  # those that are tokenised and not yet analysed
