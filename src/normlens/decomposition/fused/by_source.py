"""The method source by source: launches of its one or two kernels."""

from __future__ import annotations

from typing import Any

from normlens.decomposition.costs.kernel_memory import at_once, hidden_row_bytes, value_bytes
from normlens.decomposition.fused.kernels.by_source import feed_forward_sums
from normlens.decomposition.fused.kernels.hidden_rows import store_hidden
from normlens.decomposition.fused.launching import described, launch
from normlens.decomposition.fused.method import Method
from normlens.decomposition.fused.operands import Operand, described_both
from normlens.decomposition.fused.stage import Stage
from normlens.decomposition.fused.tiling import Tiling, stores_hidden
from normlens.matmul import forget_operands

HIDDEN_RUN = 512  # neurons of one program that stores hidden rows


class BySource(Method):
    """One kernel does everything for a source and a block of targets.

    Where mixing is expensive, a second kernel stores the hidden rows (`tiling.stores_hidden`).
    """

    def __init__(self, stage: Stage):
        super().__init__(stage)
        s = stage
        self.stored = stores_hidden(s.heads, len(s.slopes), s.d, s.m, s.precision)
        self.tiling = Tiling.choose(s.n, s.d, s.m, s.precision, s.gated, self.stored)

    @property
    def least_bytes(self) -> int:
        return self._source_bytes

    @property
    def _source_bytes(self) -> int:
        """Memory of one source's rows, or of its bypassed vectors if these are larger."""
        stage = self.stage
        return max(stage.rows.bytes_per_source, value_bytes(stage.heads, stage.d))

    def fill(self, limit: int) -> None:
        chunk = at_once(limit, self._source_bytes)  # which forms the rows' weights
        forget_operands()  # nothing else is multiplied here, and the sums are large
        self.sums = self.stage.prepare_sums(self.tiling.dims)
        for first in range(0, self.stage.tokens, chunk):
            self._run_sources(first, min(first + chunk, self.stage.tokens), limit)

    def _run_sources(self, first: int, last: int, limit: int) -> None:
        """Fill the sums of every pair whose source is one of the tokens [first, last)."""
        stage, tiling = self.stage, self.tiling
        row_block = [1, stage.head_block, tiling.neurons]
        slope_block = [tiling.targets, tiling.neurons]
        rows, bypassed = stage.rows.take(first, last), stage.bypassed(first, last)
        mixing = [
            *described_both(rows[0], row_block),
            *described_both(rows[1] if stage.gated else None, row_block),
            described(stage.slopes[0], slope_block),
            described(stage.slopes[1], slope_block) if stage.gated else None,
        ]
        step = last - first
        if self.stored:
            step = min(step, at_once(limit, self._hidden_bytes))
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
                    store_hidden,
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
                feed_forward_sums,
                stage.d_blocks * i_blocks * count,
                self.sums,
                stage.weights,
                *mixing,
                *hiddens,
                *downs,
                *stage.units(stage.rows),
                *bypassed,
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
        return hidden_row_bytes(self.stage.n, self.stage.m, self.stage.precision.itemsize)

    def _hidden_rows(self, sources: int) -> Operand | None:
        """Memory for the hidden rows (j, i, m) of so many sources; None if they are not stored."""
        if not self.stored:
            return None
        stage = self.stage
        shape = (sources, stage.n, stage.m)
        return Operand.empty(stage.weights, shape, stage.precision.operand, stage.precision.split)
