"""The base class of the methods that fill a stage's sums."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from normlens.decomposition.costs.kernel_memory import chunk_limit
from normlens.decomposition.fused.stage import Stage
from normlens.errors import MemoryLimitError
from normlens.memory_shortage import is_out_of_memory


class Method(ABC):
    """A method of filling a stage's sums: by source or matrices."""

    sums: Tensor

    def __init__(self, stage: Stage):
        self.stage = stage

    @abstractmethod
    def fill(self, limit: int) -> None:
        """Launch all kernels, with at most about `limit` bytes for intermediates."""

    @property
    @abstractmethod
    def least_bytes(self) -> int:
        """The smallest limit that still changes the size of a piece."""

    def run(self, memory_limit: int | None = None) -> None:
        """Fill the sums, in smaller pieces where the device runs out of memory."""
        limit = chunk_limit(memory_limit)
        while True:
            try:
                return self.fill(limit)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if limit <= self.least_bytes:
                    raise MemoryLimitError(
                        "out of memory in the feed-forward block, even with the smallest pieces; "
                        "use a shorter text, fewer texts at once, or another device"
                    ) from None
            limit //= 2
