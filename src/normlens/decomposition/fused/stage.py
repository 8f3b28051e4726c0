"""The feed-forward stage of a batch by the fused kernel: launches, and norms from their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlens.components import Norm
from normlens.decomposition.feedforward import (
    ORDINARY,
    AddBypass,
    FeedForwardJob,
    Normalise,
    TileNorms,
)
from normlens.decomposition.fused import operands
from normlens.decomposition.fused.operands import PRECISIONS, Operand, Precision, SourceRows
from normlens.decomposition.memory import is_out_of_memory
from normlens.decomposition.parts import Factors
from normlens.decomposition.projections import ProjectionCache
from normlens.decomposition.rules import projections
from normlens.errors import MemoryLimitError

EVERYWHERE = 1 << 29  # a reach without limit, in tokens
LONGEST_SUM = 4096  # neurons that "float32" may sum up in one go
UNLIMITED_CHUNK = 128 << 20  # bytes of source rows per launch where no limit is given


@dataclass(frozen=True)
class Tail:
    """What follows the block, in the orders that the kernel knows: RES LN, RES, LN RES, LN."""

    bypass: AddBypass | None
    normalise: Normalise | None
    norm_first: bool

    @property
    def norm(self) -> Norm | None:
        return None if self.normalise is None else self.normalise.norm

    @property
    def factors(self) -> Factors | None:
        """The bypassed parts; None where they belong to the diagonal alone."""
        return None if self.bypass is None else self.bypass.factors


def tail_of(job: FeedForwardJob) -> Tail | None:
    """The job's tail, or None if the kernel does not know it."""
    kinds = [type(step) for step in job.tail]
    if len(kinds) > 2 or len(set(kinds)) < len(kinds):
        return None
    bypass = next((step for step in job.tail if isinstance(step, AddBypass)), None)
    normalise = next((step for step in job.tail if isinstance(step, Normalise)), None)
    tail = Tail(bypass, normalise, bool(kinds) and kinds[0] is Normalise)
    if tail.factors is not None and tail.factors.weights is not job.factors.weights:
        return None  # the kernel reads one set of weights for both
    return tail


@dataclass(frozen=True)
class Slots:
    """Where the kernel puts each sum; −1: nowhere. Slot 0 is the pair's largest weight."""

    count: int
    ordinary: int = -1
    normed: int = -1  # Σ (γv)²
    mean: int = -1  # Σ v
    cross: int = -1  # Σ γ²v
    added: int = -1  # Σ u², behind the residual
    added_cross: int = -1  # Σ γu, if a norm stood before it

    @classmethod
    def of(cls, job: FeedForwardJob, tail: Tail) -> Slots:
        names = [] if job.ordinary is None else ["ordinary"]
        if tail.norm is not None:
            names += ["normed", *(["mean", "cross"] if tail.norm.centred else [])]
        if tail.bypass is not None:
            names.append("added")
            if tail.norm is not None and tail.norm_first and tail.norm.centred:
                names.append("added_cross")
        return cls(2 + len(names), **{name: 2 + place for place, name in enumerate(names)})


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
    def choose(cls, n: int, d: int, m: int, precision: Precision, gated: bool) -> Tiling:
        # Of the widths, the widest of those that pad least.
        dims = min((256, 128, 64), key=lambda width: -(-d // width) * width)
        # A pair of operands for each product leaves room for fewer stages …
        stages = 2 if precision.split else 3
        neurons = 32 if precision.split and gated else 64
        if precision.split and m > LONGEST_SUM:
            # … and a second set of sums for fewer dimensions.
            targets, warps = (64, 4) if n <= 64 else (128, 8)
            return cls(targets, min(dims, 128), neurons, warps, stages, LONGEST_SUM // 2)
        if n <= 64:
            return cls(64, min(dims, 128), neurons, 4, stages)
        return cls(128, dims, neurons, 8 if dims > 64 else 4, stages)


def fused_norms(
    job: FeedForwardJob,
    lengths: Sequence[int],
    precision: str,
    memory_limit: int | None = None,
    sums: Tensor | None = None,
) -> TileNorms:
    """Norms behind the block for every pair of a batch; `sums` may name the kernel's output.

    The sum of the parts follows from linearity, Σ_j F_i(x_j) ↦ Σ_k ((Σ_j F_i(x_j) W_k) ⊙ r^k_i)
    W_down, in the precision of the weights.
    """
    tail = tail_of(job)
    assert tail is not None, "ask `tail_of` first"
    chosen = PRECISIONS[precision]
    run = _Run(job, tail, lengths, chosen, sums)
    chunk = max(1, (memory_limit or UNLIMITED_CHUNK) // 2 // run.rows.bytes_per_source)
    first, tokens = 0, run.tokens
    while first < tokens:
        last = min(first + chunk, tokens)
        try:
            run.launch(first, last)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if chunk == 1:
                raise MemoryLimitError(
                    "out of memory in the feed-forward block, even one source at a time; use a "
                    "shorter text, fewer texts at once, or another device"
                ) from None
            chunk = max(1, chunk // 2)
            continue
        first = last
    return TileNorms(run.norms(), mixed_output(job))


def mixed_output(job: FeedForwardJob) -> Tensor:
    """``Σ_{j≠i}`` of the parts behind the block, (b, i, d), by linearity."""
    mixed = job.factors.mixed() if job.mixed is None else job.mixed
    pairs = zip(projections(job.ff), job.slopes, strict=True)
    hidden = sum((mixed @ w) * slope for w, slope in pairs)
    return torch.as_tensor(hidden) @ job.ff.down.weight


class _Run:
    """The operands of one batch, and the kernel's output."""

    def __init__(
        self,
        job: FeedForwardJob,
        tail: Tail,
        lengths: Sequence[int],
        precision: Precision,
        sums: Tensor | None,
    ):
        self.job, self.tail, self.precision = job, tail, precision
        factors, device = job.factors, job.factors.scale.device
        self.b, self.n = factors.scale.shape
        self.tokens = self.b * self.n
        self.d = job.ff.down.weight.shape[1]
        self.heads = factors.weights.shape[-1]
        self.gated = len(job.slopes) > 1
        self.slots = Slots.of(job, tail)
        m = job.ff.down.weight.shape[0]
        self.tiling = Tiling.choose(self.n, self.d, m, precision, self.gated)
        self.weights = factors.weights.contiguous()
        self.slopes, slope_sizes = operands.slopes(job.slopes, precision)
        self.down, down_size = operands.down(job.ff.down.weight, precision)
        self.rows = self._source_rows(sum(lengths))
        units = factors.scale * slope_sizes * (self.rows.weight_size * down_size)
        self.target_units = units.contiguous()
        # A tensor made on the device itself would wait for it.
        given = torch.tensor(list(lengths), dtype=torch.int32)
        self.lengths = given.to(device, non_blocking=True)
        width = self.down.high.shape[1]
        self.gamma = factors.scale.new_zeros(width)
        if tail.norm is not None:
            self.gamma[: self.d] = 1 if tail.norm.gamma is None else tail.norm.gamma
        self.ordinary = factors.scale.new_zeros(width)
        if job.ordinary is not None:
            self.ordinary[job.ordinary] = 1
        shape = (-(-width // self.tiling.dims), self.slots.count, self.b, self.n, self.n)
        if sums is None:
            sums = torch.empty(shape, dtype=torch.float32, device=device)
        self.sums = sums.view(shape)

    def _source_rows(self, tokens: int) -> SourceRows:
        """From each head's value vectors where its path to the neurons is worth forming."""
        factors, inputs = self.job.factors, projections(self.job.ff)
        remembered = self.job.remembered or ProjectionCache().of(0, None)
        paths = remembered.get(factors.basis, inputs, tokens)
        if paths is None:
            return SourceRows(factors.values, inputs, self.precision)
        return SourceRows(factors.heads, paths, self.precision)

    def launch(self, first: int, last: int) -> None:
        """The sums of every pair with a source in [first, last) of the batch's tokens."""
        from normlens.decomposition.fused import kernel

        tail, tiling, slots = self.tail, self.tiling, self.slots
        rows = self.rows.take(first, last)
        bypass = self._bypass(first, last)
        h_block = max(16, 1 << (self.heads - 1).bit_length())
        row_block = [1, h_block, tiling.neurons]
        down_block = [tiling.neurons, tiling.dims]
        slope_block = [tiling.targets, tiling.neurons]
        none = self.target_units  # stands for what a layer does not have
        reach, m = self.job.reach, self.down.high.shape[0]
        blocks = self.sums.shape[0] * -(-self.n // tiling.targets)
        kernel.launch(
            blocks * (last - first),
            self.sums,
            self.weights,
            *(kernel.described(x, row_block) for q in (rows[0], rows[-1]) for x in _both(q)),
            *(kernel.described(r, slope_block) for r in (self.slopes[0], self.slopes[-1])),
            *(kernel.described(w, down_block) for w in _both(self.down)),
            self.target_units,
            self.rows.source_sizes,
            *_both(bypass),
            none if tail.factors is None else tail.factors.scale.contiguous(),
            none if tail.normalise is None else tail.normalise.inverse_deviation.contiguous(),
            self.gamma,
            self.ordinary,
            self.lengths,
            first,
            self.b,
            self.n,
            EVERYWHERE if reach.back is None else reach.back,
            EVERYWHERE if reach.ahead is None else reach.ahead,
            M=m,
            D=self.down.high.shape[1],
            operand=self.precision.operand,
            H=self.heads,
            H_BLOCK=h_block,
            GATED=self.gated,
            SPLIT=self.precision.split,
            BYPASS=tail.factors is not None,
            NORM_FIRST=tail.norm_first,
            SLOTS=slots.count,
            ORDINARY=slots.ordinary,
            NORMED=slots.normed,
            NORMED_MEAN=slots.mean,
            NORMED_CROSS=slots.cross,
            ADDED=slots.added,
            ADDED_CROSS=slots.added_cross,
            TARGETS=tiling.targets,
            NEURONS=tiling.neurons,
            CHUNK=min(tiling.chunk, -(-m // tiling.neurons) * tiling.neurons),
            DIMS=tiling.dims,
            STAGES=tiling.stages,
            num_warps=tiling.warps,
        )

    def _bypass(self, first: int, last: int) -> Operand:
        if self.tail.factors is None:
            nothing = self.gamma.to(torch.bfloat16)
            return Operand(nothing, nothing)
        # Two bfloat16 numbers in every precision: they cost nothing here, and need no scaling.
        u = self.tail.factors.values.flatten(0, 1)[first:last]
        whole = operands.padded(u, self.down.high.shape[1])
        return operands.rounded(whole, torch.bfloat16, split=True)

    def norms(self) -> dict[str, Tensor]:
        """Every scope's norms (b, i, j), 0 where i = j."""
        job, tail, slots = self.job, self.tail, self.slots
        total = self.sums.sum(0)  # (slots, b, j, i)
        largest = self.sums[0, 0]

        def norm(squares: Tensor) -> Tensor:
            return (squares.clamp_min(0).sqrt() * largest).transpose(1, 2)

        found = {job.scope: norm(total[1])}
        if job.ordinary is not None:
            found[ORDINARY] = norm(total[slots.ordinary])
        for step in job.tail:
            if isinstance(step, Normalise):
                inverse = step.inverse_deviation[:, None]  # (b, 1, i)
                squares = total[slots.normed]
                if step.norm.centred:
                    squares = self._centred(squares, total[slots.cross], total[slots.mean])
                found[step.scope] = norm(squares * inverse.square())
            else:
                squares = total[slots.added]
                if slots.added_cross >= 0 and tail.normalise is not None:
                    shift = total[slots.mean] * tail.normalise.inverse_deviation[:, None]
                    squares = self._centred(squares, total[slots.added_cross], shift)
                found[step.scope] = norm(squares)
        return found

    def _centred(self, squares: Tensor, cross: Tensor, total: Tensor) -> Tensor:
        """``Σ (γv − γμ)² = Σ (γv)² − 2μ Σ γ²v + μ² Σ γ²`` with ``μ = Σv / d``."""
        mean = total / self.d
        return squares - 2 * mean * cross + mean.square() * self.gamma.square().sum()


def _both(operand: Operand) -> tuple[Any, Any]:
    return operand.high, operand.low
