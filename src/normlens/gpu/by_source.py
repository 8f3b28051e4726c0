"""The feed-forward stage source by source: launches, and the list of allowed pairs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.gpu.kernels.by_source import feed_forward_sums, pair_sums, store_hidden
from normlens.gpu.matmul import forget_operands, on_device
from normlens.gpu.operands import Operand, described, described_both, launch
from normlens.gpu.sizes import PROCESSORS, Tiling, sources_at_once
from normlens.gpu.stage import Method, Stage
from normlens.layers import Reach
from normlens.plan.costs import at_once, hidden_row_bytes, value_bytes

# The pairs that attention allows, listed source by source, for kernels whose rows are pairs.


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


# The method source by source: the rows of some sources at a time, and a kernel for all of it.


class BySource(Method):
    """The rows of some sources are formed, and the sums of all their pairs follow from them."""

    stored = False  # whether hidden rows are

    def __init__(self, stage: Stage):
        super().__init__(stage)
        s = stage
        self.tiling = Tiling.choose(self.row_count, s.d, s.m, s.precision, s.gated, self.stored)

    @property
    def row_count(self) -> int:
        """Rows that a block of them is cut from: a source's targets."""
        return self.stage.n

    @property
    def least_bytes(self) -> int:
        return self._source_bytes

    @property
    def _source_bytes(self) -> int:
        """Memory of one source's rows, or of its bypassed vectors if these are larger."""
        stage = self.stage
        return max(stage.rows.bytes_per_source, value_bytes(stage.heads, stage.d))

    def fill(self, limit: int) -> None:
        chunk = sources_at_once(limit, self._source_bytes)  # which forms the rows' weights
        forget_operands()  # nothing else is multiplied here, and the sums are large
        self.sums = self.stage.prepare_sums(self.tiling.dims)
        self.begin()
        for first in range(0, self.stage.tokens, chunk):
            last = min(first + chunk, self.stage.tokens)
            self.run_sources(first, last, self.stage.rows.take(first, last), limit)

    def begin(self) -> None:
        """What comes before the first sources."""

    @abstractmethod
    def run_sources(self, first: int, last: int, rows: list[Operand], limit: int) -> None:
        """Fill the sums of every pair whose source is one of the tokens [first, last)."""

    def mixing(self, rows: list[Operand]) -> list[Any]:
        """What hidden rows are made of, described for a kernel."""
        stage, tiling = self.stage, self.tiling
        row_block = [1, stage.head_block, tiling.neurons]
        slope_block = [tiling.targets, tiling.neurons]
        return [
            *described_both(rows[0], row_block),
            *described_both(rows[1] if stage.gated else None, row_block),
            described(stage.slopes[0], slope_block),
            described(stage.slopes[1], slope_block) if stage.gated else None,
        ]

    @property
    def down(self) -> list[Any]:
        """W_down, described for a kernel."""
        return described_both(self.stage.down, [self.tiling.neurons, self.tiling.dims])

    @property
    def constants(self) -> dict[str, Any]:
        """Constants of every kernel."""
        stage, tiling = self.stage, self.tiling
        return {
            "operand": stage.precision.operand,
            "M": stage.m,
            "H": stage.heads,
            "H_BLOCK": stage.head_block,
            "SPLIT": stage.precision.split,
            "TARGETS": tiling.targets,
            "num_warps": tiling.warps,
        }

    @property
    def sum_constants(self) -> dict[str, Any]:
        """Constants of a kernel that fills sums."""
        stage, tiling = self.stage, self.tiling
        return {
            "CHUNK": min(tiling.chunk, self.whole),
            "DIMS": tiling.dims,
            "STAGES": tiling.stages,
            **stage.tail_constants,
            **self.constants,
        }

    @property
    def whole(self) -> int:
        """The neurons, in whole blocks."""
        return -(-self.stage.m // self.tiling.neurons) * self.tiling.neurons


class InOneKernel(BySource):
    """One kernel does everything for a source and a block of targets."""

    def run_sources(self, first: int, last: int, rows: list[Operand], limit: int) -> None:
        stage, tiling = self.stage, self.tiling
        launch(
            feed_forward_sums,
            stage.d_blocks * -(-stage.n // tiling.targets) * (last - first),
            self.sums,
            stage.weights,
            *self.mixing(rows),
            *self.down,
            *stage.units(stage.rows),
            *stage.bypassed(first, last),
            *stage.tail_vectors,
            stage.lengths,
            first,
            stage.b,
            stage.n,
            *stage.reach,
            GATED=stage.gated,
            NEURONS=tiling.neurons,
            **self.sum_constants,
        )


# The method source by source with stored hidden rows: one row for each pair that is allowed.


HIDDEN_RUN = 512  # neurons of one program that stores hidden rows
SHARED = 200 << 10  # bytes of shared memory for what it reads ahead


class ByPair(BySource):
    """One kernel stores hidden rows, another one multiplies them.

    Rows of forbidden pairs and of padding are not stored, so a block of rows may belong to several
    sources.
    """

    stored = True

    def __init__(self, stage: Stage):
        lengths = stage.given_lengths
        self.pairs = PairList.of(stage.job.reach, lengths, stage.n, stage.weights.device)
        super().__init__(stage)

    @property
    def row_count(self) -> int:
        """Rows that a block of them is cut from: all pairs."""
        return len(self.pairs)

    def begin(self) -> None:
        self.sums.zero_()  # what pairs that are not listed keep

    def run_sources(self, first: int, last: int, rows: list[Operand], limit: int) -> None:
        start, stop = self.pairs.sources(first, last)
        begin, end = int(self.pairs.begins[start]), int(self.pairs.begins[stop])
        if begin == end:
            return
        step = self.pairs_at_once(limit, end - begin)
        hidden, bypassed = self.room(step), self.stage.bypassed(first, last)
        for pair in range(begin, end, step):
            self._store(pair, min(pair + step, end), first, rows, hidden)
            self._sum(pair, min(pair + step, end), first, bypassed, hidden)

    def _store(self, begin: int, end: int, first: int, rows: list[Operand], out: Operand) -> None:
        """Store the hidden rows of the pairs [begin, end), whose rows begin at token `first`."""
        stage, tiling = self.stage, self.tiling
        start, stop = self.pairs.sources_of(begin, end)
        most = int((self.pairs.begins[start + 1 : stop + 1] - self.pairs.begins[start:stop]).max())
        run, blocks = min(HIDDEN_RUN, self.whole), -(-most // tiling.targets)
        launch(
            store_hidden,
            -(-stage.m // run) * blocks * (stop - start),
            *out.both,
            stage.weights,
            *self.mixing(rows),
            *self.pairs.on_device[1:],
            start,
            begin,
            end,
            first,
            blocks,
            stage.n,
            GATED=stage.gated,
            NEURONS=tiling.neurons,
            RUN=run,
            STAGES=self.hidden_stages,
            **self.constants,
        )

    def _sum(self, begin: int, end: int, first: int, bypassed: Any, hidden: Operand) -> None:
        """Fill the sums of the pairs [begin, end); vectors of sources begin at token `first`."""
        stage, tiling = self.stage, self.tiling
        stored = hidden.mapped(lambda rows: rows[: end - begin])  # nobody wrote the others
        launch(
            pair_sums,
            stage.d_blocks * -(-(end - begin) // tiling.targets),
            self.sums,
            stage.weights,
            *described_both(stored, [tiling.targets, tiling.neurons]),
            *self.down,
            *stage.units(stage.rows),
            *bypassed,
            *stage.tail_vectors,
            *self.pairs.on_device,
            begin,
            end,
            first,
            stage.b,
            stage.n,
            **self.sum_constants,
        )

    @property
    def hidden_stages(self) -> int:
        """Blocks of neurons that a program which stores hidden rows has in shared memory."""
        stage, tiling, split = self.stage, self.tiling, self.stage.precision.split
        numbers = 2 * (1 + split) * stage.head_block + (4 if split else 2) * tiling.targets
        size = len(stage.slopes) * tiling.neurons * numbers
        return max(1, min(2 if split else 3, SHARED // size))

    def pairs_at_once(self, limit: int, most: int) -> int:
        """Rows that are stored at once: whole blocks, which keep all processors busy to the end."""
        stage, targets = self.stage, self.tiling.targets
        size = targets * hidden_row_bytes(stage.m, stage.precision.itemsize)
        blocks = min(at_once(limit, size), -(-most // targets))
        even = PROCESSORS // gcd(PROCESSORS, stage.d_blocks)
        if blocks > even:
            blocks -= blocks % even
        return blocks * targets

    def room(self, pairs: int) -> Operand:
        """Memory for the hidden rows (pair, m)."""
        stage, precision = self.stage, self.stage.precision
        shape = (pairs, stage.m)
        return Operand.empty(stage.weights, shape, precision.operand, precision.split)
