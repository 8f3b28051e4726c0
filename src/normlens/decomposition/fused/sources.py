"""Launches of the way source by source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from normlens.decomposition.fused.kernels import by_source
from normlens.decomposition.fused.launching import described, launch
from normlens.decomposition.fused.operands import Operand, Precision, described_both
from normlens.decomposition.fused.stage import Stage
from normlens.decomposition.fused.way import Way

#: Neurons that "float32" may sum up in one go, where three products go into one running sum and
#: where the two small ones are added first.
LONGEST_SUM, LONGEST_SORTED_SUM = 4096, 16384
#: Rows are mixed anew for each block of dimensions. From so many heads (times projections) on it
#: costs less to store what comes of them.
STORED_FROM, STORED_BEYOND = 48, 256  # heads times projections; dimensions
HIDDEN_RUN = 512  # neurons of one program that stores hidden rows


def block_of_dims(d: int) -> int:
    """Of the widths, the widest of those that pad least."""
    return min((256, 128, 64), key=lambda width: -(-d // width) * width)


@dataclass(frozen=True)
class Tiling:
    """Targets, dimensions and neurons of one program, and how it is run."""

    targets: int = 128
    dims: int = 256
    neurons: int = 64
    warps: int = 8
    stages: int = 3
    chunk: int = 1 << 30  # neurons that are summed up in one go

    @classmethod
    def choose(
        cls, n: int, d: int, m: int, precision: Precision, gated: bool, stored: bool
    ) -> Tiling:
        dims = block_of_dims(d)
        targets, warps = (64, 4) if n <= 64 else (128, 8)
        if targets == 64:
            dims = min(dims, 128)
        # A pair of operands for each product leaves room for fewer stages.
        pairs = precision.split and not stored
        neurons = 32 if pairs and gated else 64
        stages = 2 if pairs else 3
        if precision.split and m > (LONGEST_SORTED_SUM if stored else LONGEST_SUM):
            return cls(targets, min(dims, 128), neurons, warps, stages, LONGEST_SUM // 2)
        return cls(targets, dims, neurons, warps, stages)


class BySource(Way):
    """For each source and a block of targets, everything in one kernel."""

    def __init__(self, stage: Stage):
        super().__init__(stage)
        s = stage
        many = s.heads * len(s.slopes) >= STORED_FROM and s.d > STORED_BEYOND
        self.stored = many or (s.precision.split and s.m > LONGEST_SUM)
        self.tiling = Tiling.choose(s.n, s.d, s.m, s.precision, s.gated, self.stored)

    @property
    def least_bytes(self) -> int:
        return self.stage.rows.bytes_per_source

    def fill(self, limit: int) -> None:
        self.sums = self.stage.prepare_sums(self.tiling.dims)
        chunk = max(1, limit // self.stage.rows.bytes_per_source)
        for first in range(0, self.stage.tokens, chunk):
            self._run_sources(first, min(first + chunk, self.stage.tokens), limit)

    def _run_sources(self, first: int, last: int, limit: int) -> None:
        """The sums of every pair with a source in [first, last) of the batch's tokens."""
        stage, tiling = self.stage, self.tiling
        row_block = [1, stage.head_block, tiling.neurons]
        slope_block = [tiling.targets, tiling.neurons]
        rows = stage.rows.take(first, last)
        mixing = [
            *described_both(rows[0], row_block),
            *described_both(rows[1] if stage.gated else None, row_block),
            described(stage.slopes[0], slope_block),
            described(stage.slopes[1], slope_block) if stage.gated else None,
        ]
        step = last - first
        if self.stored:
            step = max(1, min(step, limit // self._hidden_bytes))
        hiddens = described_both(self._hidden_rows(step), [1, *slope_block])
        downs = described_both(stage.down, [tiling.neurons, tiling.dims])
        i_blocks = -(-stage.n // tiling.targets)
        whole = -(-stage.m // tiling.neurons) * tiling.neurons
        run = min(HIDDEN_RUN, whole)
        common: dict[str, Any] = {
            "operand": stage.precision.operand,
            "M": stage.m,
            "H": stage.heads,
            "H_BLOCK": stage.head_block,
            "GATED": stage.gated,
            "SPLIT": stage.precision.split,
            "TARGETS": tiling.targets,
            "NEURONS": tiling.neurons,
            "num_warps": tiling.warps,
        }
        for start in range(first, last, step):
            count = min(step, last - start)
            place = [stage.lengths, start, start - first]
            if self.stored:
                launch(
                    by_source.store_hidden,
                    -(-stage.m // run) * i_blocks * count,
                    *hiddens,
                    stage.weights,
                    *mixing,
                    *place,
                    stage.n,
                    *stage.reach,
                    RUN=run,
                    STAGES=2 if stage.precision.split else 3,
                    **common,
                )
            launch(
                by_source.feed_forward_sums,
                stage.d_blocks * i_blocks * count,
                self.sums,
                stage.weights,
                *mixing,
                *hiddens,
                *downs,
                *stage.units(stage.rows),
                *stage.tail_vectors,
                *place,
                stage.b,
                stage.n,
                *stage.reach,
                STORED=self.stored,
                CHUNK=min(tiling.chunk, whole),
                DIMS=tiling.dims,
                STAGES=tiling.stages,
                **stage.tail_constants,
                **common,
            )

    @property
    def _hidden_bytes(self) -> int:
        """Memory of one source's hidden rows."""
        return self.stage.n * self.stage.m * self.stage.precision.itemsize

    def _hidden_rows(self, sources: int) -> Operand | None:
        """Room for the hidden rows (j, i, m) of so many sources, if they are stored."""
        if not self.stored:
            return None
        stage = self.stage
        shape = (sources, stage.n, stage.m)
        return Operand.empty(stage.weights, shape, stage.precision.operand, stage.precision.split)
