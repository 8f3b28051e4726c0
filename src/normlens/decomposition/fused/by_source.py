"""The method source by source: the rows of some sources at a time, and a kernel for all of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from normlens.decomposition.costs.kernel_memory import value_bytes
from normlens.decomposition.fused.kernels.by_source import feed_forward_sums
from normlens.decomposition.fused.launching import described, launch
from normlens.decomposition.fused.method import Method
from normlens.decomposition.fused.operands import Operand, described_both
from normlens.decomposition.fused.stage import Stage
from normlens.decomposition.fused.tiling import Tiling, sources_at_once
from normlens.matmul import forget_operands


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
