"""The pairs that attention allows, listed source by source, for kernels whose rows are pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.device_constants import on_device
from normlens.reach import Reach


@dataclass(frozen=True)
class PairList:
    """Pairs in the order of their sources, and of targets for each; padding has none.

    Sources are numbered as they come; `tokens` says which token of the batch each of them is.
    """

    tokens: NDArray[np.int64]  # (s,)
    lows: NDArray[np.int64]  # (s,) the first target of each source
    begins: NDArray[np.int64]  # (s + 1,) the place of its first pair
    device: torch.device

    @classmethod
    def of(cls, reach: Reach, lengths: Sequence[int], n: int, device: torch.device) -> PairList:
        """List the pairs of sequences of these lengths, which are padded to n tokens."""
        tokens, lows, counts = [], [], []
        for place, length in enumerate(lengths):
            j = np.arange(length)
            low = np.zeros_like(j) if reach.ahead is None else np.maximum(0, j - reach.ahead)
            last = np.full_like(j, length - 1)
            if reach.back is not None:
                last = np.minimum(last, j + reach.back)
            tokens.append(place * n + j)
            lows.append(low)
            counts.append(last - low + 1)
        begins = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        return cls(np.concatenate(tokens), np.concatenate(lows), begins, device)

    def __len__(self) -> int:
        return int(self.begins[-1])

    def sources(self, first: int, last: int) -> tuple[int, int]:
        """The sources among the tokens [first, last), as a range of their numbers."""
        start, stop = np.searchsorted(self.tokens, [first, last])
        return int(start), int(stop)

    def sources_of(self, first: int, last: int) -> tuple[int, int]:
        """The sources of the pairs [first, last), as a range of their numbers."""
        start = np.searchsorted(self.begins, first, side="right") - 1
        stop = np.searchsorted(self.begins, last, side="left")
        return int(start), int(stop)

    @cached_property
    def on_device(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The source of each pair; then the tokens, lows and begins of sources, for a kernel."""
        tokens, lows = (self._numbers(each, torch.int32) for each in (self.tokens, self.lows))
        begins = self._numbers(self.begins, torch.int64)
        numbers = torch.arange(len(tokens), dtype=torch.int32, device=self.device)
        sources = torch.repeat_interleave(numbers, begins.diff(), output_size=len(self))
        return sources, tokens, lows, begins

    def _numbers(self, given: NDArray[np.int64], dtype: torch.dtype) -> Tensor:
        return on_device(tuple(given.tolist()), self.device, dtype)
