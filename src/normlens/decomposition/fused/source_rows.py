"""The rows that are mixed into hidden rows, ``Q^k_jh``, formed for some sources at a time."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from normlens.decomposition.costs.kernel_memory import source_row_bytes
from normlens.decomposition.fused.kernels import preparation
from normlens.decomposition.fused.launching import launch, strided
from normlens.decomposition.fused.operands import Operand, ScaledWeights
from normlens.decomposition.fused.precision import Precision
from normlens.decomposition.fused.tiling import SOURCE_BLOCK, power_of_two

COLUMNS, INNER = 128, 64  # of a block of projected rows
LONGEST_ROW_SUM = 1024


def source_sizes(x: Tensor) -> Tensor:
    """The size of each source: the largest norm of its vectors x (b, j, h, e), as (b·j,)."""
    b, n, h, e = x.shape
    sizes = torch.empty(b * n, dtype=torch.float32, device=x.device)
    launch(
        preparation.measure_sources,
        b * n,
        sizes,
        *strided(x),
        H=h,
        E=e,
        H_BLOCK=power_of_two(h),
        BLOCK=min(64, power_of_two(e)),
    )
    return sizes


class SourceRows:
    """Rows ``Q^k_jh = x_jh P^k_h`` of any sources of the batch, divided by their sizes.

    x is a head's value vector v_jh and P its head product B_h W_k, or x is U_jh and P is W_k.
    """

    def __init__(self, x: Tensor, scaled: ScaledWeights, precision: Precision):
        self.split = precision.split
        self._given = x  # (b, j, h, e)
        self.heads, self.weights, self.weight_size = x.shape[2], scaled.weights, scaled.size
        self.source_sizes = source_sizes(x)

    @cached_property
    def x(self) -> Tensor:
        return self._given.contiguous()

    @property
    def neurons(self) -> int:
        return self.weights[0].high.shape[-1]

    @property
    def bytes_per_source(self) -> int:
        """Memory of one source's rows."""
        item = 4 if self.split else 2
        return source_row_bytes(self.heads, self.neurons, len(self.weights), item)

    def take(self, first: int, last: int) -> list[Operand]:
        """Each projection's rows (j, h, m) of the tokens in [first, last)."""
        h, m = self.heads, self.neurons
        x = self.x.flatten(0, 1)[first:last]
        sizes = self.source_sizes[first:last]
        made = []
        for weight in self.weights:
            out = Operand.empty(x, (last - first, h, m), torch.float16, self.split)
            self._project(weight, x, sizes, out)
            made.append(out)
        return made

    def _project(self, weight: Operand, x: Tensor, sizes: Tensor, out: Operand) -> None:
        """Write ``x P`` into `out`."""
        groups, e, m = weight.high.shape
        shared = groups < self.heads  # then every head of a token is a separate row
        rows = len(x) * (self.heads if shared else 1)
        columns, inner = min(COLUMNS, power_of_two(m)), max(16, min(INNER, power_of_two(e)))
        launch(
            preparation.project_rows,
            -(-m // columns) * groups * -(-rows // SOURCE_BLOCK),
            *out.both,
            x,
            sizes,
            *weight.both,
            rows,
            operand=torch.float16,
            GROUPS=groups,
            E=e,
            COLUMNS=m,
            PER_SIZE=self.heads if shared else 1,
            SPLIT=self.split,
            ROWS=SOURCE_BLOCK,
            BLOCK=columns,
            INNER=inner,
            CHUNK=LONGEST_ROW_SUM,
            num_warps=8,
        )
