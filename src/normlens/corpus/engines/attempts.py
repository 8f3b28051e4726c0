"""How often each shard was in the hands of a worker that died."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Attempts:
    """Deaths by the numbers of shards, over the whole life of a run.

    `keep` is called with a shard, its count and the reason of the last death. `resumed` says that a
    process worked on this run before, and was stopped.
    """

    def __init__(
        self,
        before: Mapping[int, int] | None = None,
        keep: Callable[[int, int, str], None] | None = None,
        resumed: bool = False,
    ):
        self.resumed = resumed
        self._counts = dict(before or {})
        self._keep = keep

    def __getitem__(self, shard: int) -> int:
        return self._counts.get(shard, 0)

    def add(self, shard: int, reason: str) -> int:
        """Count one more death, and return how many there are."""
        self._counts[shard] = count = self[shard] + 1
        if self._keep is not None:
            self._keep(shard, count, reason)
        return count
