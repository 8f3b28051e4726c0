"""The interface of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from normlens.corpus.engines.attempts import Attempts
from normlens.corpus.runs.shards import Finished, Shard


class Engine(ABC):
    """Turns shards into their results, in whatever order they come."""

    identity: dict[str, Any]  # of the model that the workers hold
    by: dict[str, Any]  # where it runs

    @abstractmethod
    def compute(
        self, shards: Iterable[Shard], attempts: Attempts | None = None
    ) -> Iterator[Finished]:
        """Compute shards, taking each only when there is room for it, and yield their results.

        `attempts` knows which shards were in the hands of workers that died, and is told.
        """

    def has_result(self) -> bool:
        """Whether `compute` would yield the next result at once; such are committed together."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Let go of workers and models."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()
        self.close()

    def abandon(self) -> None:
        """Drop the work that is going on; its results are not wanted any more."""
        return  # within one process nothing goes on that could not be waited for
