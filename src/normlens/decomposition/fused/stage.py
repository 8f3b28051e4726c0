"""The feed-forward stage of a batch by the fused kernel: launches, and norms from their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

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
from normlens.decomposition.fused.operands import (
    PRECISIONS,
    Operand,
    Precision,
    ScaledWeights,
    SourceRows,
)
from normlens.decomposition.memory import is_out_of_memory
from normlens.decomposition.parts import Factors
from normlens.decomposition.projections import ProjectionCache
from normlens.decomposition.rules import projections
from normlens.errors import MemoryLimitError

T = TypeVar("T")

EVERYWHERE = 1 << 29  # a reach without limit, in tokens
#: Neurons that "float32" may sum up in one go, where three products go into one running sum and
#: where the two small ones are added first.
LONGEST_SUM, LONGEST_SORTED_SUM = 4096, 16384
#: Rows are mixed anew for each block of dimensions. From so many heads (times projections) on it
#: costs less to store what comes of them.
STORED_FROM, STORED_BEYOND = 48, 256  # heads times projections; dimensions
HIDDEN_RUN = 512  # neurons of one program that stores hidden rows
#: What the rows of one launch may take, and as much again for the hidden rows.
CHUNK_BYTES = 128 << 20


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
    """Where the kernel puts each sum; −1: nowhere.

    Slot 0 is the pair's largest weight, 1 is Σ v² and 2 is Σ v just behind the block.
    """

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
        return cls(3 + len(names), **{name: 3 + place for place, name in enumerate(names)})


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
        # Of the widths, the widest of those that pad least.
        dims = min((256, 128, 64), key=lambda width: -(-d // width) * width)
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


def fused_norms(
    job: FeedForwardJob,
    lengths: Sequence[int],
    precision: str,
    memory_limit: int | None = None,
    sums: Tensor | None = None,
) -> TileNorms:
    """Norms behind the block for every pair of a batch; `sums` may name the kernel's output.

    The kernel's parts are compared with the sum `job.mixed` that they should have.
    """
    tail = tail_of(job)
    assert tail is not None, "ask `tail_of` first"
    limit = min(memory_limit or CHUNK_BYTES, CHUNK_BYTES)
    run = _Run(job, tail, lengths, PRECISIONS[precision], sums)
    while not run.done(limit):
        limit //= 2
    assert job.mixed is not None, "the kernel's parts need a sum to be compared with"
    assert job.output is not None
    return TileNorms(run.norms(), job.mixed, run.error(job.mixed, job.output))


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
        many = self.heads * len(job.slopes) >= STORED_FROM and self.d > STORED_BEYOND
        self.stored = many or (precision.split and m > LONGEST_SUM)
        self.tiling = Tiling.choose(self.n, self.d, m, precision, self.gated, self.stored)
        self.weights = factors.weights.contiguous()
        self.slopes, slope_sizes = operands.slopes(job.slopes, precision)
        self.down, down_size = self._remembered("down", self._scaled_down)
        self.rows = self._source_rows(sum(lengths))
        units = factors.scale * slope_sizes * (self.rows.weight_size * down_size)
        self.target_units = units.contiguous()
        self.lengths = _on_device(tuple(lengths), device)
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
        known = self.job.remembered or ProjectionCache().of(0, None)
        paths = known.get(factors.basis, inputs, tokens)
        if paths is None:
            weights = ScaledWeights.of(inputs, self.precision)
            return SourceRows(factors.values, weights, self.precision)

        def scaled() -> tuple[ScaledWeights, int]:
            made = ScaledWeights.of(paths, self.precision)
            return made, made.nbytes

        weights = self._remembered("paths", scaled)
        return SourceRows(factors.heads, weights, self.precision)

    def _scaled_down(self) -> tuple[tuple[Operand, Tensor], int]:
        made, size = operands.down(self.job.ff.down.weight, self.precision)
        return (made, size), made.high.nbytes + made.low.nbytes

    def _remembered(self, name: str, make: Callable[[], tuple[T, int]]) -> T:
        """Operands that depend on weights alone are kept from text to text."""
        known = self.job.remembered
        return make()[0] if known is None else known.operand((name, self.precision), make)

    def done(self, limit: int) -> bool:
        """Launch everything within `limit` bytes; False if the device ran out of memory."""
        chunk = max(1, limit // self.rows.bytes_per_source)
        try:
            for first in range(0, self.tokens, chunk):
                self._run_sources(first, min(first + chunk, self.tokens), limit)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if chunk == 1:
                raise MemoryLimitError(
                    "out of memory in the feed-forward block, even one source at a time; use a "
                    "shorter text, fewer texts at once, or another device"
                ) from None
            return False
        return True

    def _run_sources(self, first: int, last: int, limit: int) -> None:
        """The sums of every pair with a source in [first, last) of the batch's tokens."""
        from normlens.decomposition.fused import kernel

        tail, tiling, slots, reach = self.tail, self.tiling, self.slots, self.job.reach
        m, d = self.down.high.shape
        h_block = max(16, 1 << (self.heads - 1).bit_length())
        row_block = [1, h_block, tiling.neurons]
        slope_block = [tiling.targets, tiling.neurons]
        rows = self.rows.take(first, last)
        mixing = [
            *(kernel.described(x, row_block) for q in (rows[0], rows[-1]) for x in _both(q)),
            *(kernel.described(r, slope_block) for r in (self.slopes[0], self.slopes[-1])),
        ]
        step = last - first
        if self.stored:
            step = max(1, min(step, limit // self._hidden_bytes))
        hidden = self._hidden_rows(step)
        hiddens = [kernel.described(x, [1, *slope_block]) for x in _both(hidden)]
        down_block = [tiling.neurons, tiling.dims]
        downs = [kernel.described(w, down_block) for w in _both(self.down)]
        bypass = self._bypass(first, last)
        none = self.target_units  # stands for what a layer does not have
        vectors = [
            self.target_units,
            self.rows.source_sizes,
            *_both(bypass),
            none if tail.factors is None else tail.factors.scale.contiguous(),
            none if tail.normalise is None else tail.normalise.inverse_deviation.contiguous(),
            self.gamma,
            self.ordinary,
        ]
        reaches = [EVERYWHERE if far is None else far for far in (reach.back, reach.ahead)]
        i_blocks = -(-self.n // tiling.targets)
        whole = -(-m // tiling.neurons) * tiling.neurons
        run = min(HIDDEN_RUN, whole)
        common: dict[str, Any] = {
            "operand": self.precision.operand,
            "M": m,
            "H": self.heads,
            "H_BLOCK": h_block,
            "GATED": self.gated,
            "SPLIT": self.precision.split,
            "TARGETS": tiling.targets,
            "NEURONS": tiling.neurons,
        }
        for start in range(first, last, step):
            count = min(step, last - start)
            place = [self.lengths, start, start - first]
            if self.stored:
                kernel.launch(
                    kernel.store_hidden,
                    -(-m // run) * i_blocks * count,
                    *hiddens,
                    self.weights,
                    *mixing,
                    *place,
                    self.n,
                    *reaches,
                    RUN=run,
                    STAGES=2,
                    num_warps=tiling.warps,
                    **common,
                )
            kernel.launch(
                kernel.feed_forward_sums,
                self.sums.shape[0] * i_blocks * count,
                self.sums,
                self.weights,
                *mixing,
                *hiddens,
                *downs,
                *vectors,
                *place,
                self.b,
                self.n,
                *reaches,
                D=d,
                STORED=self.stored,
                BYPASS=tail.factors is not None,
                NORM_FIRST=tail.norm_first,
                SLOTS=slots.count,
                ORDINARY=slots.ordinary,
                NORMED=slots.normed,
                NORMED_MEAN=slots.mean,
                NORMED_CROSS=slots.cross,
                ADDED=slots.added,
                ADDED_CROSS=slots.added_cross,
                CHUNK=min(tiling.chunk, whole),
                DIMS=tiling.dims,
                STAGES=tiling.stages,
                num_warps=tiling.warps,
                **common,
            )

    @property
    def _hidden_bytes(self) -> int:
        """Memory of one source's hidden rows."""
        return self.n * self.down.high.shape[0] * 2 * (2 if self.precision.split else 1)

    def _hidden_rows(self, sources: int) -> Operand:
        """Room for the hidden rows (j, i, m) of so many sources."""
        m = self.down.high.shape[0]
        shape = (sources, self.n, m) if self.stored else (1, 1, m)
        high = self.sums.new_empty(shape, dtype=self.precision.operand)
        return Operand(high, torch.empty_like(high) if self.precision.split else high)

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

    def error(self, mixed: Tensor, output: Tensor) -> Tensor:
        """How far the kernel's parts miss the vectors `mixed` (b, i, d) that they add up to.

        The worst ``|Σ_j Σ_d F_i(x_j) − Σ_d mixed_i| / (√d ‖output_i‖)`` of the real tokens: enough
        to notice operands that no longer belong to the model's weights.
        """
        total = (self.sums[:, 2].sum(0) * self.sums[0, 0]).sum(1)  # (b, i)
        size = torch.linalg.vector_norm(output, dim=-1) * self.d**0.5
        relative = (total - mixed.sum(-1)).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)
        is_token = torch.arange(self.n, device=total.device) < self.lengths[:, None]
        return relative.masked_fill(~is_token, 0).max().nan_to_num(nan=torch.inf)

    def _centred(self, squares: Tensor, cross: Tensor, total: Tensor) -> Tensor:
        """``Σ (γv − γμ)² = Σ (γv)² − 2μ Σ γ²v + μ² Σ γ²`` with ``μ = Σv / d``."""
        mean = total / self.d
        return squares - 2 * mean * cross + mean.square() * self.gamma.square().sum()


def _both(operand: Operand) -> tuple[Any, Any]:
    return operand.high, operand.low


@lru_cache(maxsize=64)
def _on_device(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    # A tensor that is made on the device itself would wait for it.
    return torch.tensor(lengths, dtype=torch.int32).to(device, non_blocking=True)
