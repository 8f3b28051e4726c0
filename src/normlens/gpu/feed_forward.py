"""The feed-forward stage of a batch by the cheapest of the kernels' methods.

Source by source, the rows of some sources are formed at a time, and kernels do the rest; the method
target by target stands in `matrices`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.frozen.stage import tail_of
from normlens.frozen.tiles import Job, PairNorms
from normlens.gpu.by_source import feed_forward_sums, pair_sums, store_hidden
from normlens.gpu.matmul import forget_operands
from normlens.gpu.matrices import Matrices
from normlens.gpu.operands import Operand
from normlens.gpu.pieces import described, launch
from normlens.gpu.sizes import PRECISIONS, PROCESSORS, Tiling, sources_at_once
from normlens.gpu.stage import Method, Stage
from normlens.gpu.transfer import on_device
from normlens.layers import Reach
from normlens.plan.costs import MATRICES
from normlens.plan.kernels import KernelStage, at_once, stores_hidden_rows


def fused_norms(
    job: Job,
    lengths: Sequence[int],
    precision: str,
    memory_limit: int | None = None,
    sums: Tensor | None = None,
) -> PairNorms:
    """Norms behind the block for every pair of a batch.

    The sum of the kernels' parts is compared with `job.mixed`, which it should equal; where that
    is not known, with what the block makes of the sum over sources. `sums` may be given as the
    memory that the kernels write to.
    """
    tail = tail_of(job)
    assert tail is not None, "ask `tail_of` first"
    if job.mixed is None:
        job = replace(job, mixed=job.block.linear(job.factors.sum_of_sources()))
    assert job.mixed is not None
    stage = Stage(job, tail, lengths, PRECISIONS[precision], sums)
    cheapest_method(stage).run(memory_limit)
    norms, error = stage.norms()
    return PairNorms(norms, job.mixed, precision, {"sum": error})


def cheapest_method(stage: Stage) -> Method:
    """The cheapest method by the cost model."""
    method = KernelStage(stage.shape, stage.precision).method
    return Matrices(stage) if method == MATRICES else by_source(stage)


def by_source(stage: Stage) -> BySource:
    """The method source by source; where that costs less, it stores hidden rows."""
    stored = stores_hidden_rows(stage.texts, stage.shape, stage.precision)
    return ByPair(stage) if stored else InOneKernel(stage)


# The method source by source: the rows of some sources at a time, and a kernel for all of it.


class BySource(Method):
    """The rows of some sources are formed, and the sums of all their pairs follow from them."""

    stored = False  # whether hidden rows are
    sums: Tensor

    def __init__(self, stage: Stage, rows: int):
        """`rows` are those that a block of them is cut from."""
        super().__init__(stage)
        s = stage
        self.tiling = tiling = Tiling.choose(rows, s.d, s.m, s.precision, s.gated, self.stored)
        self.whole = -(-s.m // tiling.neurons) * tiling.neurons  # neurons, in whole blocks
        #: Constants of every kernel, and of those that fill sums.
        self.constants: dict[str, Any] = {
            "operand": s.precision.operand,
            "M": s.m,
            "H": s.heads,
            "H_BLOCK": s.head_block,
            "SPLIT": s.precision.split,
            "TARGETS": tiling.targets,
            "num_warps": tiling.warps,
        }
        self.sum_constants: dict[str, Any] = {
            "CHUNK": min(tiling.chunk, self.whole),
            "DIMS": tiling.dims,
            "STAGES": tiling.stages,
            **s.tail_constants,
            **self.constants,
        }

    @property
    def least_bytes(self) -> int:
        """Memory of one source's rows, or of its bypassed vectors if these are larger."""
        return max(self.stage.rows.bytes_per_source, 4 * self.stage.heads * self.stage.d)

    def fill(self, limit: int) -> None:
        chunk = sources_at_once(limit, self.least_bytes)  # which forms the rows' weights
        forget_operands()  # nothing else is multiplied here, and the sums are large
        self.sums = self.stage.prepare_sums(self.tiling.dims)
        if self.stored:
            self.sums.zero_()  # what pairs that are not listed keep
        for first in range(0, self.stage.tokens, chunk):
            last = min(first + chunk, self.stage.tokens)
            self.run_sources(first, last, self.stage.rows.take(first, last), limit)

    @abstractmethod
    def run_sources(self, first: int, last: int, rows: list[Operand], limit: int) -> None:
        """Fill the sums of every pair whose source is one of the tokens [first, last)."""

    def mixing(self, rows: list[Operand]) -> list[Any]:
        """What hidden rows are made of, described for a kernel."""
        stage, tiling = self.stage, self.tiling
        slope_block = [tiling.targets, tiling.neurons]
        made = [each.described([1, stage.head_block, tiling.neurons]) for each in rows]
        slopes = [described(each, slope_block) for each in stage.slopes]
        if not stage.gated:
            return [*made[0], None, None, *slopes, None]
        return [*made[0], *made[1], *slopes]

    def summing(self, bypassed: tuple[Tensor, int, int]) -> list[Any]:
        """What sums are formed from beside the hidden rows: W_down, and the steps behind it."""
        stage = self.stage
        return [
            *stage.down.described([self.tiling.neurons, self.tiling.dims]),
            *stage.units(stage.rows),
            *bypassed,
            stage.bypass_scale,
            stage.inverse_deviation,
            stage.gamma,
            stage.ordinary,
        ]


class InOneKernel(BySource):
    """One kernel does everything for a source and a block of targets."""

    def __init__(self, stage: Stage):
        super().__init__(stage, stage.n)

    def run_sources(self, first: int, last: int, rows: list[Operand], limit: int) -> None:
        stage, tiling = self.stage, self.tiling
        launch(
            feed_forward_sums,
            stage.d_blocks * -(-stage.n // tiling.targets) * (last - first),
            self.sums,
            stage.weights,
            *self.mixing(rows),
            *self.summing(stage.bypassed(first, last)),
            stage.lengths,
            first,
            stage.b,
            stage.n,
            *stage.reach,
            GATED=stage.gated,
            NEURONS=tiling.neurons,
            **self.sum_constants,
        )


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
            back, ahead = reach.integers
            low, last = np.maximum(0, j - ahead), np.minimum(length - 1, j + back)
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
        kinds = (self.tokens, torch.int32), (self.lows, torch.int32), (self.begins, torch.int64)
        tokens, lows, begins = (
            on_device(tuple(x.tolist()), self.device, kind) for x, kind in kinds
        )
        numbers = torch.arange(len(tokens), dtype=torch.int32, device=self.device)
        sources = torch.repeat_interleave(numbers, begins.diff(), output_size=len(self))
        return sources, tokens, lows, begins


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
        self.pairs = PairList.of(stage.job.factors.reach, lengths, stage.n, stage.weights.device)
        super().__init__(stage, len(self.pairs))

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
        most = int(np.diff(self.pairs.begins[start : stop + 1]).max())
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

    def _sum(
        self,
        begin: int,
        end: int,
        first: int,
        bypassed: tuple[Tensor, int, int],
        hidden: Operand,
    ) -> None:
        """Fill the sums of the pairs [begin, end); vectors of sources begin at token `first`."""
        stage, tiling = self.stage, self.tiling
        stored = hidden.mapped(lambda rows: rows[: end - begin])  # nobody wrote the others
        launch(
            pair_sums,
            stage.d_blocks * -(-(end - begin) // tiling.targets),
            self.sums,
            stage.weights,
            *stored.described([tiling.targets, tiling.neurons]),
            *self.summing(bypassed),
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
        size = targets * stage.m * stage.precision.itemsize
        blocks = min(at_once(limit, size), -(-most // targets))
        even = PROCESSORS // gcd(PROCESSORS, stage.d_blocks)
        if blocks > even:
            blocks -= blocks % even
        return blocks * targets

    def room(self, pairs: int) -> Operand:
        """Memory for the hidden rows (pair, m)."""
        return Operand.empty(self.stage.weights, (pairs, self.stage.m), self.stage.precision)
