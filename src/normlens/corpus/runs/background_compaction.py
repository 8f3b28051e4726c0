"""Compaction beside a run: a thread of the driver that joins what the workers have written."""

from __future__ import annotations

from collections.abc import Iterable
from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING

from normlens.corpus.runs.compaction import Compaction, DamagedFile, Stopped
from normlens.corpus.runs.shards import Done
from normlens.errors import NormLensError

if TYPE_CHECKING:
    from typing_extensions import Self


#: Finished shards that the thread may be behind before the run waits for it.
BEHIND = 2048
#: Seconds after which one who waits looks whether the thread is still there.
_LOOK = 0.5


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

    The run waits for it only where it is far behind, so that neither memory nor small files pile
    up, and does not fail with it: files that were not joined are as good as others. At the end, if
    anything was joined, the rest is, too.
    """

    def __init__(self, compaction: Compaction):
        self._compaction = compaction
        self._new: Queue[Done | None] = Queue(BEHIND)
        self._problem: BaseException | None = None
        self._thread = Thread(target=self._work, name="normlens-compact", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._compaction.stopped.set()
        self._tell(None)
        self._thread.join()

    def add(self, shards: Iterable[Done]) -> None:
        for shard in shards:
            self._tell(shard)

    def _tell(self, shard: Done | None) -> None:
        """Tell the thread of a shard, or of the end, unless it has met a problem and ended."""
        while self._thread.is_alive():
            try:
                return self._new.put(shard, timeout=_LOOK)
            except Full:
                continue

    def finish(self) -> str | None:
        self._tell(None)
        self._thread.join()
        if self._problem is not None and not isinstance(self._problem, NormLensError):
            raise self._problem
        return None if self._problem is None else str(self._problem)

    def _work(self) -> None:
        try:
            listening = True
            while listening:
                listening = self._listen()
                while self._step(rest=False):
                    pass
            while self._compaction.has_joined and self._step(rest=True):
                pass
        except Stopped:
            pass
        except BaseException as error:
            self._problem = error

    def _listen(self) -> bool:
        """Wait for new shards and take in those that are there; False at the end."""
        for _ in range(max(1, self._new.qsize())):  # what comes meanwhile is taken in next time
            if (done := self._new.get()) is None:
                return False
            self._compaction.add(done)
        return True

    def _step(self, rest: bool) -> bool:
        if self._compaction.stopped.is_set():
            raise Stopped
        try:
            return self._compaction.step(rest=rest)
        except DamagedFile as error:
            self._problem = self._problem or error
            return True  # the file is left out from now on
