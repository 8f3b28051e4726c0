"""Norms of the parts behind the feed-forward block with PyTorch, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from normlens.errors import MemoryLimitError, is_out_of_memory, process_limit
from normlens.frozen.head_products import HeadProducts, KeptProducts, ProductTensors
from normlens.frozen.norm import FrozenNorm
from normlens.frozen.parts import Factors, FrozenBlock
from normlens.gpu.matmul import times
from normlens.layers import Experts, FeedForward, Norm, Reach
from normlens.plan.costs import TILES, Plan, Shape, choose_plan

# Memory that tiles share, because fresh pages for each tile would cost more than filling them.


class Buffers:
    """Named pieces of memory that grow to the largest shape they were asked for."""

    def __init__(self) -> None:
        self._storage: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """An uninitialised tensor of `shape` in the piece called `name`, of `like`'s kind."""
        size = prod(shape)
        stored = self._storage.get(name)
        kind = like.dtype, like.device
        if stored is None or stored.numel() < size or (stored.dtype, stored.device) != kind:
            self._storage.pop(name, None)  # free the old piece before taking a larger one
            stored = self._storage[name] = like.new_empty(size)
        return stored[:size].view(shape)

    def clear(self) -> None:
        self._storage.clear()


# The job of the stage behind the feed-forward block, and its result.
#
# A job is one group of sources at one layer's block, with the steps that follow. Tiles, the fused
# kernels (`gpu`) and the Shapley rule (`shapley`) all take a job and return norms of pairs.


#: Name of the map just behind the block that leaves out special dimensions.
ORDINARY = "ordinary"


@dataclass(frozen=True)
class AddBypass:
    """RES behind the block: add the parts that this group of sources had at the branching point."""

    scope: str
    factors: Factors | None  # None: this group has no bypassed parts off the diagonal
    own: Tensor  # (b, i, d), the bypassed part of the token itself

    def pass_tile(self, tile: Tensor, index: int, targets: slice, sources: slice) -> Tensor | None:
        """Add the bypassed parts of other tokens to those of a tile (j, i, d), in place."""
        if self.factors is not None:
            tile.baddbmm_(*self.factors.tile(index, targets, sources))
        return None


@dataclass(frozen=True)
class Normalise:
    """LN behind the block."""

    scope: str
    step: FrozenNorm

    def pass_tile(self, tile: Tensor, index: int, targets: slice, sources: slice) -> Tensor | None:
        """Stretch the parts of a tile (j, i, d) in place; the factors 1/σ_i (i,) are to come."""
        self.step.stretch_(tile)
        return self.step.inverse_deviation[index, targets]


TailStep = AddBypass | Normalise


@dataclass(frozen=True)
class StageJob:
    """One group of sources at the feed-forward block of one layer, and the steps behind it."""

    scope: str
    factors: Factors  # the group's parts at the block's input
    tail: tuple[TailStep, ...]
    buffers: Buffers = field(default_factory=Buffers)
    #: dimensions of the block's output in one more map, `ORDINARY`
    ordinary: Tensor | None = None
    kept: KeptProducts | None = None  # products of this layer's weights, if there are any
    #: the block's real output (b, i, d), and where it follows from that, the output without
    #: diagonal and bias: Σ_{j≠i} of the parts behind the block
    output: Tensor | None = None
    mixed: Tensor | None = None

    @property
    def reach(self) -> Reach:
        return self.factors.reach

    @property
    def scopes(self) -> list[str]:
        ordinary = [] if self.ordinary is None else [ORDINARY]
        return [self.scope, *ordinary, *(step.scope for step in self.tail)]

    def sources(self, index: int, targets: int) -> int:
        """The number of sources of the sequence at `index`, which has so many targets."""
        return targets if self.factors.lengths is None else self.factors.lengths[index]

    @property
    def block(self) -> FeedForward | Experts:
        """The weights of the block."""
        raise NotImplementedError

    def shape(self, targets: int, sources: int | None = None) -> Shape:
        """The sizes of a sequence with so many targets, and perhaps other `sources`."""
        heads, itemsize = self.factors.weights.shape[-1], self.factors.scale.element_size()
        others = None if self.factors.source is None else sources
        return Shape.of_block(self.block, heads, self.reach, targets, itemsize, others)

    def products(self, count: int) -> ProductTensors | None:
        """Products of the weights in front of the neurons, if `count` sources use them."""
        return None

    def rows(self, index: int, sources: slice, products: ProductTensors | None) -> list[Tensor]:
        """What the tiles of some sources share."""
        return []

    def tile(
        self, index: int, targets: slice, sources: slice, method: str, rows: list[Tensor]
    ) -> Tensor:
        """The parts just behind the block, (j, i, d)."""
        raise NotImplementedError


class FeedForwardBlock(FrozenBlock):
    """A feed-forward block, behind which parts exist only in a stage."""

    def job(self, common: StageJob) -> StageJob:
        """The block's job, of which the fields that all jobs have are given."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class FeedForwardJob(StageJob):
    """The job of a block that is the same for all targets."""

    ff: FeedForward
    slopes: tuple[Tensor, ...]  # r^k (b, i, m); empty where the rule has none

    @property
    def block(self) -> FeedForward:
        """The weights of the block."""
        return self.ff

    @cached_property
    def _products(self) -> HeadProducts:
        return HeadProducts(self.kept, self.factors.basis, self.ff.projections)

    def products(self, count: int) -> ProductTensors | None:
        """Products of the weights in front of the neurons, if `count` sources use them."""
        return self._products.for_tokens(count)

    def rows(self, index: int, sources: slice, products: ProductTensors | None) -> list[Tensor]:
        """``Q^k_jh = U_jh W_k`` for a block of sources, each (j, h, m)."""
        rows = []
        if products is None:
            u = self.factors.values[index, sources]  # (j, h, d)
            for k, w in enumerate(self.ff.projections):
                out = self.buffers.take(f"rows {k}", w, u.shape[0] * u.shape[1], w.shape[1])
                product = torch.mm(u.reshape(out.shape[0], -1), w, out=out)
                rows.append(product.view(*u.shape[:2], -1))
            return rows
        v = self.factors.heads[index, sources].transpose(0, 1)  # (h, j, d_head)
        for k, w in enumerate(products):
            out = self.buffers.take(f"rows {k}", w, *v.shape[:2], w.shape[-1])
            rows.append(torch.bmm(v, w, out=out).transpose(0, 1))
        return rows

    def tile(
        self, index: int, targets: slice, sources: slice, method: str, rows: list[Tensor]
    ) -> Tensor:
        """By the rows of its sources, or by a matrix for each target."""
        if method == TILES:
            return tile_by_rows(self, index, targets, sources, rows)
        return tile_by_matrices(self, index, targets, sources)

    def sum_behind_block(self) -> Tensor:
        """``Σ_j`` of the group's parts just behind the block, (b, i, d), without its parts."""
        v = self.factors.sum_of_sources()
        hidden = torch.zeros_like(self.slopes[0])
        for w, slope in zip(self.ff.projections, self.slopes, strict=True):
            hidden = hidden + times(v, w) * slope
        return times(hidden, self.ff.down.weight)


@dataclass
class PairNorms:
    """The result of a job: off-diagonal norms per scope, and the sum of the block's parts."""

    norms: dict[str, Tensor]  # scope → (b, i, j), 0 where i = j
    mixed: Tensor  # (b, i, d), Σ_{j≠i} of the parts just behind the block
    #: relative error of the parts' sum against `mixed`; None where `mixed` was summed from them
    error: Tensor | None = None


# Norms of the parts behind the feed-forward block, tile by tile.
#
# Behind the nonlinearity ``F_i(x_j) ← Σ_k ((F_i(x_j) W_k) ⊙ r^k_i) W_down``, which no longer
# factors. The first product is almost free, because ``F_i(x_j) W_k = s_i Σ_h A_ijh (U_jh W_k)``
# mixes H rows that are computed once per source. The second product sets the cost of the whole
# method. It is done for a tile of targets and sources at a time, and only a few numbers per pair
# leave the tile.


def feed_forward_norms(
    job: StageJob, lengths: Sequence[int], memory_limit: int | None = None
) -> PairNorms:
    """Norms behind the block for every pair, one sequence of the batch after another."""
    b, n_sources, n, _ = job.factors.weights.shape
    empty = job.factors.scale.new_zeros
    norms = {scope: empty(b, n, n_sources) for scope in job.scopes}
    result = PairNorms(norms, empty(b, n, job.factors.basis.shape[-1]))
    for index, length in enumerate(lengths):
        count = job.sources(index, length)
        plan: Plan | None = choose_plan(job.shape(length, count), memory_limit)
        # Decided for each sequence alone, so that it does not depend on the rest of the batch.
        products = job.products(count) if plan is not None and plan.method == TILES else None
        while plan is not None:
            try:
                _run_sequence(job, index, length, plan, products, result)
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                job.buffers.clear()
                plan = plan.halved()
        else:
            raise MemoryLimitError(
                f"out of memory in the feed-forward block with {length} tokens, even one pair at a "
                f"time; use a shorter text or another device{process_limit()}"
            )
    return result


def _run_sequence(
    job: StageJob,
    index: int,
    n: int,
    plan: Plan,
    products: ProductTensors | None,
    result: PairNorms,
) -> None:
    """Fill the result of one sequence by tiles of the plan's size."""
    result.mixed[index].zero_()
    n_sources = job.sources(index, n)
    for j in range(0, n_sources, plan.sources):
        block = slice(j, min(j + plan.sources, n_sources))
        rows = job.rows(index, block, products) if plan.method == TILES else []
        for i in range(0, n, plan.targets):
            targets = slice(i, min(i + plan.targets, n))
            low, high = job.reach.sources(targets.start, targets.stop, n_sources)
            sources = slice(max(low, block.start), min(high, block.stop))
            if sources.start >= sources.stop:
                continue
            some = [q[sources.start - j : sources.stop - j] for q in rows]
            tile = job.tile(index, targets, sources, plan.method, some)
            result.mixed[index, targets] += tile.sum(0)
            for scope, values in scope_norms(job, index, targets, sources, tile):
                result.norms[scope][index, targets, sources] = values.transpose(0, 1)


def tile_by_rows(
    job: FeedForwardJob, index: int, targets: slice, sources: slice, rows: list[Tensor]
) -> Tensor:
    """``Σ_k ((s_i Σ_h A_ijh Q^k_jh) ⊙ r^k_i) W_down`` for one block, (j, i, d)."""
    weights = job.factors.weights[index, sources, targets]  # (j, i, h)
    scale = job.factors.scale[index, targets, None]
    down = job.ff.down.weight
    j, i, _ = weights.shape
    m, d = down.shape
    hidden = job.buffers.take("hidden", down, j, i, m)
    for k, (q, slope) in enumerate(zip(rows, job.slopes, strict=True)):
        # s_i goes into the slopes: both belong to the target, and the slopes are smaller.
        scaled = slope[index, targets] * scale  # (i, m)
        if k == 0:
            torch.bmm(weights, q, out=hidden)
            hidden.mul_(scaled)
        else:
            mixed = job.buffers.take("gated", down, j, i, m)
            torch.bmm(weights, q, out=mixed)
            hidden.addcmul_(mixed, scaled)
    out = job.buffers.take("out", down, j * i, d)
    return torch.mm(hidden.view(j * i, m), down, out=out).view(j, i, d)


def tile_by_matrices(job: FeedForwardJob, index: int, targets: slice, sources: slice) -> Tensor:
    """``F_i(x_j) M_i`` with ``M_i = Σ_k W_k diag(r^k_i) W_down`` for one block, (j, i, d)."""
    weights = job.factors.weights[index, sources, targets]
    parts = torch.bmm(weights, job.factors.values[index, sources])  # (j, i, d)
    d = parts.shape[-1]
    matrices = parts.new_empty(targets.stop - targets.start, d, d)
    for matrix, target in zip(matrices, range(targets.start, targets.stop), strict=True):
        scaled = torch.zeros_like(job.ff.up.weight)
        for w, slope in zip(job.ff.projections, job.slopes, strict=True):
            scaled.addcmul_(w, slope[index, target])
        torch.mm(scaled, job.ff.down.weight, out=matrix).mul_(job.factors.scale[index, target])
    return torch.bmm(parts.transpose(0, 1), matrices).transpose(0, 1)


def scope_norms(
    job: StageJob, index: int, targets: slice, sources: slice, tile: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Each scope's norms (j, i) of a tile (j, i, d), which is overwritten step by step."""
    yield job.scope, torch.linalg.vector_norm(tile, dim=-1)
    if job.ordinary is not None:
        yield ORDINARY, torch.linalg.vector_norm(tile[..., job.ordinary], dim=-1)
    for step in job.tail:
        inverse = step.pass_tile(tile, index, targets, sources)
        norms = torch.linalg.vector_norm(tile, dim=-1)
        yield step.scope, norms if inverse is None else norms * inverse
        if inverse is not None and step is not job.tail[-1]:
            tile.mul_(inverse[:, None])


# The steps behind the feed-forward block that the kernels support, and the sums they keep.


@dataclass(frozen=True)
class Tail:
    """The steps behind the block, in an order that the kernels support: RES LN, RES, LN RES, LN."""

    bypass: AddBypass | None = None
    normalise: Normalise | None = None
    norm_first: bool = False

    @property
    def norm(self) -> Norm | None:
        return None if self.normalise is None else self.normalise.step.norm

    @property
    def factors(self) -> Factors | None:
        """The bypassed parts; None where only the diagonal is bypassed."""
        return None if self.bypass is None else self.bypass.factors


def is_supported(kinds: Sequence[type | str]) -> bool:
    """Whether the kernels support a tail of these kinds of steps: at most one of each."""
    return len(kinds) <= 2 and len(set(kinds)) == len(kinds)


def tail_of(job: FeedForwardJob) -> Tail | None:
    """The job's tail, or None if the kernels do not support it."""
    if not is_supported([type(step) for step in job.tail]):
        return None
    bypass = next((step for step in job.tail if isinstance(step, AddBypass)), None)
    normalise = next((step for step in job.tail if isinstance(step, Normalise)), None)
    tail = Tail(bypass, normalise, normalise is not None and job.tail[0] is normalise)
    if tail.factors is not None and tail.factors.weights is not job.factors.weights:
        return None  # the kernels read one set of weights for both
    return tail


#: The sums of a pair that a kernel may keep, in the order of their slots: Σ v² of the ordinary
#: dimensions; Σ (γv)², Σ v and Σ γ²v of a norm; Σ u² behind the residual, and Σ γu if a norm stood
#: before it. Slot 0 is the pair's largest weight, 1 is Σ v² and 2 is Σ v just behind the block.
SLOTS = ("ORDINARY", "NORMED", "NORMED_MEAN", "NORMED_CROSS", "ADDED", "ADDED_CROSS")


def kernel_slots(
    ordinary: bool, norm: Norm | None, bypassed: bool, norm_first: bool
) -> dict[str, Any]:
    """The slot of each sum as a constant of a kernel; −1: not kept. "SLOTS" counts them."""
    centred = norm is not None and norm.centred
    kept = (
        ordinary,
        norm is not None,
        centred,
        centred,
        bypassed,
        bypassed and norm_first and centred,
    )
    slots, count = {}, 3
    for name, is_kept in zip(SLOTS, kept, strict=True):
        slots[name] = count if is_kept else -1
        count += is_kept
    return {"SLOTS": count, **slots}
