"""Compaction beside a run: a thread of the driver that joins what the workers have written."""

from __future__ import annotations

from collections.abc import Iterable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from normlens.corpus.runs.compaction import Compaction, DamagedFile, Stopped
from normlens.corpus.runs.shards import Done
from normlens.errors import NormLensError

if TYPE_CHECKING:
    from typing_extensions import Self


class NoCompaction:
    """Leaves files as they are; the base of what joins them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def add(self, shards: Iterable[Done]) -> None:
        """Take shards into account whose records are in the log."""

    def finish(self) -> str | None:
        """Wait until all is joined; the reason if that was not possible."""
        return None


class BackgroundCompaction(NoCompaction):
    """A thread that is told of finished shards and joins their files when some are due.

    The run does not wait for it before its end, and does not fail with it: files that were not
    joined are as good as others. At the end, if anything was joined, the rest is, too.
    """

    def __init__(self, compaction: Compaction):
        self._compaction = compaction
        self._new: SimpleQueue[Done | None] = SimpleQueue()
        self._problem: BaseException | None = None
        self._thread = Thread(target=self._work, name="normlens-compact", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._compaction.stopped.set()
        self._new.put(None)
        self._thread.join()

    def add(self, shards: Iterable[Done]) -> None:
        if self._thread.is_alive():  # or it has met a problem, and nobody would listen
            for shard in shards:
                self._new.put(shard)

    def finish(self) -> str | None:
        self._new.put(None)
        self._thread.join()
        if self._problem is not None and not isinstance(self._problem, NormLensError):
            raise self._problem
        return None if self._problem is None else str(self._problem)

    def _work(self) -> None:
        try:
            while self._listen():
                while self._step(rest=False) and self._listen(wait=False):
                    pass
            while self._compaction.has_joined and self._step(rest=True):
                pass
        except Stopped:
            pass
        except BaseException as error:
            self._problem = error

    def _listen(self, wait: bool = True) -> bool:
        """Take in the shards that are new, at least one if it may wait; False at the end."""
        try:
            while (done := self._new.get(block=wait)) is not None:
                self._compaction.add(done)
                wait = False
        except Empty:
            return True
        self._new.put(None)  # for whoever listens next
        return False

    def _step(self, rest: bool) -> bool:
        if self._compaction.stopped.is_set():
            raise Stopped
        try:
            return self._compaction.step(rest=rest)
        except DamagedFile as error:
            self._problem = self._problem or error
            return True  # the file is left out from now on
