"""The method source by source with stored hidden rows: one row for each pair that is allowed."""

from __future__ import annotations

from math import gcd
from typing import Any

from normlens.decomposition.costs.kernel_memory import at_once, hidden_row_bytes
from normlens.decomposition.fused.by_source import BySource
from normlens.decomposition.fused.kernels.by_pair import pair_sums
from normlens.decomposition.fused.kernels.hidden_rows import store_hidden
from normlens.decomposition.fused.launching import launch
from normlens.decomposition.fused.operands import Operand, described_both
from normlens.decomposition.fused.pair_list import PairList
from normlens.decomposition.fused.stage import Stage
from normlens.decomposition.fused.tiling import PROCESSORS

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
