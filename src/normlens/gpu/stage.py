"""The feed-forward stage of a batch by GPU kernels: operands that its methods share, and norms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from normlens.errors import MemoryLimitError, is_out_of_memory
from normlens.frozen.feedforward import FrozenFeedForward
from normlens.frozen.parts import Parts
from normlens.frozen.stage import Tail, kernel_slots
from normlens.frozen.tiles import ORDINARY, Job
from normlens.gpu.matmul import rough_product, times
from normlens.gpu.operands import ScaledWeights, SourceRows, scaled_slopes
from normlens.gpu.pieces import error_of_totals, launch, norms_of_sums, strided
from normlens.gpu.sizes import Precision, block_of_heads, power_of_two
from normlens.gpu.transfer import on_device
from normlens.plan.costs import Shape
from normlens.plan.kernels import chunk_limit

NORM_BLOCK = 32  # sources and targets of a program that forms norms from sums


class Stage:
    """The operands of one batch that all methods share, and the sums that they fill."""

    def __init__(
        self,
        job: Job,
        tail: Tail,
        lengths: Sequence[int],
        precision: Precision,
        sums: Tensor | None = None,
    ):
        assert isinstance(job.block, FrozenFeedForward)
        self.job, self.tail, self.precision = job, tail, precision
        self.block, ff, slopes = job.block, job.block.ff, job.block.neurons.slopes
        factors, device = job.factors, job.factors.scale.device
        self.b, self.n = factors.scale.shape
        self.tokens, self.given_lengths = self.b * self.n, tuple(lengths)
        self.texts = [(length, factors.reach.pairs(length)) for length in lengths]
        self.d, self.heads = ff.down.weight.shape[1], factors.weights.shape[-1]
        self.head_block = block_of_heads(self.heads)
        self.gated = len(slopes) > 1
        norm = None if tail.norm is None else tail.norm.norm
        has_bypass, has_ordinary = tail.bypass is not None, job.ordinary is not None
        self.slots = kernel_slots(has_ordinary, norm, has_bypass, tail.norm_first)
        self.weights = factors.weights.contiguous()
        self.slopes, self.slope_sizes = scaled_slopes(slopes, precision)
        down = self._kept("down", lambda: ScaledWeights.of_down(ff.down.weight, precision))
        (self.down,), self.down_size = down.weights, down.size
        self.m, self.width = self.down.high.shape  # padded
        self.lengths = on_device(tuple(lengths), device, torch.int32)
        self.reach = factors.reach.integers
        #: γ of the norm behind the block, 1/σ_i, and the scale of the bypassed parts; where there
        #: is none, something that kernels do not read. 1 for each ordinary dimension, 0 for others.
        gamma = None if norm is None else norm.gamma
        self.gamma = self.slope_sizes.new_ones(self.d) if gamma is None else gamma.contiguous()
        self.inverse_deviation = self.bypass_scale = self.ordinary = self.gamma
        if tail.norm is not None:
            self.inverse_deviation = tail.norm.inverse_deviation.contiguous()
        if tail.factors is not None:
            self.bypass_scale = tail.factors.scale.contiguous()
        if job.ordinary is not None:
            self.ordinary = self.gamma.new_zeros(self.d)
            self.ordinary[job.ordinary] = 1
        self.tail_constants = {
            "D": self.d,
            "BYPASS": tail.factors is not None,
            "NORM_FIRST": tail.norm_first,
            **self.slots,
        }
        self._sums = sums
        self.d_blocks, self.sum_strides = 0, (0, 0)

    def prepare_sums(self, dims: int, targets_first: bool = False) -> Tensor:
        """Memory for the sums (d blocks, slots, b, j, i), in blocks of `dims` dimensions.

        With `targets_first` the sums are (d blocks, slots, b, i, j).
        """
        self.d_blocks = -(-self.width // dims)
        self.sum_strides = (1, self.n) if targets_first else (self.n, 1)
        shape = (self.d_blocks, self.slots["SLOTS"], self.b, self.n, self.n)
        if self._sums is None:
            self._sums = torch.empty(shape, dtype=torch.float32, device=self.weights.device)
        return self._sums.view(shape)

    @property
    def shape(self) -> Shape:
        """The sizes of the whole batch."""
        pairs = sum(pairs for _, pairs in self.texts)
        tokens, k = sum(self.given_lengths), len(self.slopes)
        return Shape(tokens, pairs, self.d, self.m, self.heads, k)

    @cached_property
    def rows(self) -> SourceRows:
        """The rows that are mixed into hidden rows: by head products, or from U."""
        job = self.job
        if not job.uses_head_products(sum(self.given_lengths)):
            return self.value_rows
        products = job.head_products(times if self.precision.split else rough_product)
        weights = self._kept("head products", lambda: ScaledWeights.of(products, self.precision))
        return SourceRows(job.factors.heads, weights, self.precision)

    @cached_property
    def value_rows(self) -> SourceRows:
        """The rows from U = v B and the input projections W_k themselves."""
        given = [linear.weight for linear in self.block.ff.inputs]
        weights = self._kept("inputs", lambda: ScaledWeights.of(given, self.precision))
        return SourceRows(self.job.factors.values, weights, self.precision)

    def units(self, rows: SourceRows) -> list[Tensor]:
        """The sizes that the operands were divided by."""
        scale = self.job.factors.scale.contiguous()
        return [scale, self.slope_sizes, rows.source_sizes, rows.weight_size, self.down_size]

    def bypassed(self, first: int, last: int) -> tuple[Tensor, int, int]:
        """U of the bypassed parts of some sources, with its strides."""
        bypass = self.tail.factors
        return (self.gamma, 0, 0) if bypass is None else strided(bypass.values_of(first, last))

    def _kept(self, name: str, make: Callable[[], ScaledWeights]) -> ScaledWeights:
        """Operands formed from weights alone: kept with the layer's products if those are kept."""
        kept = self.job.kept
        return make() if kept is None else kept.operand((name, self.precision), make)

    def norms(self) -> tuple[dict[str, Tensor], Tensor]:
        """Every scope's norms (b, i, j), 0 where i = j, and the parts' error.

        The error compares the sum of the parts with `job.mixed`: it is the largest
        ``|Σ_j Σ_d F_i(x_j) − Σ_d mixed_i| / (√d ‖output_i‖)`` of the real tokens, enough to notice
        operands that no longer belong to the model's weights.
        """
        job, b, n, sums = self.job, self.b, self.n, self._sums
        assert sums is not None
        assert job.mixed is not None
        names = [job.scope] if job.ordinary is None else [job.scope, ORDINARY]
        names += sorted(job.tail, key=lambda scope: isinstance(job.tail[scope], Parts))
        norms = torch.empty((len(names), b, n, n), dtype=torch.float32, device=sums.device)
        blocks = -(-n // NORM_BLOCK)
        totals = torch.empty((blocks, b, n), dtype=torch.float32, device=sums.device)
        launch(
            norms_of_sums,
            b * blocks * blocks,
            norms,
            totals,
            sums,
            self.inverse_deviation,
            torch.dot(self.gamma, self.gamma),
            *self.sum_strides,
            b,
            n,
            D=self.d,
            D_BLOCKS=self.d_blocks,
            BLOCK=NORM_BLOCK,
            **self.slots,
        )
        errors = torch.empty((b, n), dtype=torch.float32, device=sums.device)
        real = [job.mixed.contiguous(), self.block.output.contiguous(), self.lengths]
        constants: dict[str, Any] = {"ROOT": self.d**0.5, "BLOCK": min(1024, power_of_two(self.d))}
        launch(error_of_totals, b * n, errors, totals, *real, b, n, blocks, D=self.d, **constants)
        return dict(zip(names, norms, strict=True)), errors.max()


class Method(ABC):
    """A method of filling a stage's sums: by source or matrices."""

    def __init__(self, stage: Stage):
        self.stage = stage

    @property
    @abstractmethod
    def least_bytes(self) -> int:
        """The smallest limit that still changes the size of a piece."""

    @abstractmethod
    def fill(self, limit: int) -> None:
        """Launch all kernels, with at most about `limit` bytes for intermediates."""

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
