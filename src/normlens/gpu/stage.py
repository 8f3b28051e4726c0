"""The feed-forward stage of a batch by GPU kernels: operands, sums, norms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from normlens.errors import MemoryLimitError, is_out_of_memory
from normlens.frozen.head_products import HeadProducts, ProductTensors
from normlens.frozen.rules import projections
from normlens.frozen.tiles import ORDINARY, FeedForwardJob, Slots, Tail
from normlens.gpu import operands
from normlens.gpu.kernels.pieces import error_of_totals, norms_of_sums
from normlens.gpu.matmul import on_device, rough_product, times
from normlens.gpu.operands import Operand, ScaledWeights, SourceRows, launch, reaches, strided
from normlens.gpu.sizes import Precision, block_of_heads, power_of_two
from normlens.plan.costs import Shape, chunk_limit

# The feed-forward stage of a batch by fused kernels: shared operands, and norms from sums.


T = TypeVar("T")

NORM_BLOCK = 32  # sources and targets of a program that forms norms from sums


class Stage:
    """The operands of one batch that all methods share, and the sums that they fill."""

    def __init__(
        self,
        job: FeedForwardJob,
        tail: Tail,
        lengths: Sequence[int],
        precision: Precision,
        sums: Tensor | None = None,
    ):
        self.job, self.tail, self.precision = job, tail, precision
        factors, device = job.factors, job.factors.scale.device
        self.b, self.n = factors.scale.shape
        self.given_lengths = tuple(lengths)
        self.tokens, self.real_tokens = self.b * self.n, sum(lengths)
        self.pairs = sum(job.reach.pairs(length) for length in lengths)
        self.d, self.heads = job.ff.down.weight.shape[1], factors.weights.shape[-1]
        self.head_block = block_of_heads(self.heads)
        self.gated = len(job.slopes) > 1
        self.slots = Slots.of(job, tail)
        self.weights = factors.weights.contiguous()
        self.slopes, self.slope_sizes = operands.slopes(job.slopes, precision)
        self.down, self.down_size = self._kept("down", self._scaled_down)
        self.m, self.width = self.down.high.shape  # padded
        self.lengths = on_device(tuple(lengths), device, torch.int32)
        self.reach = reaches(job.reach)
        self._sums = sums
        self.d_blocks, self.sum_strides = 0, (0, 0)

    def prepare_sums(self, dims: int, targets_first: bool = False) -> Tensor:
        """Memory for the sums (d blocks, slots, b, j, i), in blocks of `dims` dimensions.

        With `targets_first` the sums are (d blocks, slots, b, i, j).
        """
        self.d_blocks = -(-self.width // dims)
        self.sum_strides = (1, self.n) if targets_first else (self.n, 1)
        shape = (self.d_blocks, self.slots.count, self.b, self.n, self.n)
        if self._sums is None:
            self._sums = torch.empty(shape, dtype=torch.float32, device=self.weights.device)
        return self._sums.view(shape)

    @property
    def shape(self) -> Shape:
        """The sizes of the whole batch."""
        k = len(self.slopes)
        return Shape(self.real_tokens, self.pairs, self.d, self.m, self.heads, k)

    @cached_property
    def _head_products(self) -> HeadProducts:
        job = self.job
        product = times if self.precision.split else rough_product
        return HeadProducts(job.kept, job.factors.basis, projections(job.ff), product)

    @property
    def head_products(self) -> ProductTensors | None:
        """The head products B_h W_k, if they are used."""
        return self._head_products.for_tokens(self.real_tokens)

    @cached_property
    def rows(self) -> SourceRows:
        """The rows that are mixed into hidden rows: by head products, or from U."""
        products = self.head_products
        if products is None:
            return self.value_rows

        def scaled() -> tuple[ScaledWeights, int]:
            made = ScaledWeights.of(products, self.precision)
            return made, made.nbytes

        weights = self._kept("head products", scaled)
        self._head_products.forget()
        return SourceRows(self.job.factors.heads, weights, self.precision)

    @cached_property
    def value_rows(self) -> SourceRows:
        """The rows from U = v B and the input projections W_k themselves."""

        def scaled() -> tuple[ScaledWeights, int]:
            made = ScaledWeights.of(projections(self.job.ff), self.precision)
            return made, made.nbytes

        return SourceRows(self.job.factors.values, self._kept("inputs", scaled), self.precision)

    def units(self, rows: SourceRows) -> list[Tensor]:
        """The sizes that the operands were divided by."""
        scale = self.job.factors.scale.contiguous()
        return [scale, self.slope_sizes, rows.source_sizes, rows.weight_size, self.down_size]

    def bypassed(self, first: int, last: int) -> tuple[Tensor, int, int]:
        """U of the bypassed parts of some sources, with its strides."""
        bypass = self.tail.factors
        return (self.gamma, 0, 0) if bypass is None else strided(bypass.values_of(first, last))

    @cached_property
    def tail_vectors(self) -> list[Any]:
        """The scale of the bypassed parts, 1/σ_i, γ and the ordinary dimensions."""
        none, bypass = self.gamma, self.tail.factors
        return [
            none if bypass is None else bypass.scale.contiguous(),
            self.inverse_deviation,
            self.gamma,
            self.ordinary,
        ]

    @cached_property
    def gamma(self) -> Tensor:
        """γ of the norm behind the block; ones where there is none."""
        given = None if self.tail.norm is None else self.tail.norm.gamma
        return self.slope_sizes.new_ones(self.d) if given is None else given.contiguous()

    @cached_property
    def inverse_deviation(self) -> Tensor:
        """1/σ_i of the norm behind the block, if there is one."""
        normalise = self.tail.normalise
        return self.gamma if normalise is None else normalise.step.inverse_deviation.contiguous()

    @property
    def tail_constants(self) -> dict[str, Any]:
        return {
            "D": self.d,
            "BYPASS": self.tail.factors is not None,
            "NORM_FIRST": self.tail.norm_first,
            **self.slots.constants,
        }

    @cached_property
    def ordinary(self) -> Tensor:
        """1 for each ordinary dimension and 0 for others, if their map is requested."""
        if self.job.ordinary is None:
            return self.gamma
        kept = self.gamma.new_zeros(self.d)
        kept[self.job.ordinary] = 1
        return kept

    def _scaled_down(self) -> tuple[tuple[Operand, Tensor], int]:
        made, size = operands.down(self.job.ff.down.weight, self.precision)
        return (made, size), made.nbytes

    def _kept(self, name: str, make: Callable[[], tuple[T, int]]) -> T:
        """Operands formed from weights alone: kept with the layer's products if those are kept."""
        kept = self.job.kept
        return make()[0] if kept is None else kept.operand((name, self.precision), make)

    def norms(self) -> tuple[dict[str, Tensor], Tensor]:
        """Every scope's norms (b, i, j), 0 where i = j, and the parts' error.

        The error compares the sum of the parts with `job.mixed`: it is the largest
        ``|Σ_j Σ_d F_i(x_j) − Σ_d mixed_i| / (√d ‖output_i‖)`` of the real tokens, enough to notice
        operands that no longer belong to the model's weights.
        """
        job, b, n, sums = self.job, self.b, self.n, self._sums
        assert sums is not None
        assert job.mixed is not None
        assert job.output is not None
        names = [job.scope]
        names += [] if job.ordinary is None else [ORDINARY]
        names += [] if self.tail.normalise is None else [self.tail.normalise.scope]
        names += [] if self.tail.bypass is None else [self.tail.bypass.scope]
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
            **self.slots.constants,
        )
        errors = torch.empty((b, n), dtype=torch.float32, device=sums.device)
        launch(
            error_of_totals,
            b * n,
            errors,
            totals,
            job.mixed.contiguous(),
            job.output.contiguous(),
            self.lengths,
            b,
            n,
            blocks,
            D=self.d,
            ROOT=self.d**0.5,
            BLOCK=min(1024, power_of_two(self.d)),
        )
        return dict(zip(names, norms, strict=True)), errors.max()


# The base class of the methods that fill a stage's sums.


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
