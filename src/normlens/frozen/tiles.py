"""Norms of the parts behind the feed-forward block with PyTorch, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from normlens.errors import MemoryLimitError, is_out_of_memory, process_limit
from normlens.frozen.experts import FrozenExperts
from normlens.frozen.head_products import HeadProducts, KeptProducts, ProductTensors
from normlens.frozen.norm import FrozenNorm
from normlens.frozen.parts import Factors
from normlens.frozen.rules import projections
from normlens.gpu.matmul import times
from normlens.layers import FeedForward, Norm, Reach
from normlens.plan.costs import MATRICES, TILES, Shape
from normlens.plan.method import Plan, choose_plan

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
# A job is one group of sources at one layer's block, with the steps that follow. Tiles (`tiles`),
# the fused kernels (`fused`) and the Shapley rule (`shapley`) all take a job and return norms of
# pairs.


#: Name of the map just behind the block that leaves out special dimensions.
ORDINARY = "ordinary"


@dataclass(frozen=True)
class AddBypass:
    """RES behind the block: add the parts that this group of sources had at the branching point."""

    scope: str
    factors: Factors | None  # None: this group has no bypassed parts off the diagonal
    own: Tensor  # (b, i, d), the bypassed part of the token itself

    def add_to(self, tile: Tensor, index: int, targets: slice, sources: slice) -> None:
        """Add the bypassed parts of other tokens to those of a tile (j, i, d), in place."""
        if self.factors is not None:
            weights = self.factors.weights[index, sources, targets]
            weights = weights * self.factors.scale[index, targets, None]
            tile.baddbmm_(weights, self.factors.values[index, sources])


@dataclass(frozen=True)
class Normalise:
    """LN behind the block."""

    scope: str
    step: FrozenNorm


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


@dataclass(frozen=True, kw_only=True)
class FeedForwardJob(StageJob):
    """The job of a block that is the same for all targets."""

    ff: FeedForward
    slopes: tuple[Tensor, ...]  # r^k (b, i, m); empty where the rule has none
    kept: KeptProducts | None = None  # products of this layer's weights, if there are any
    #: the block's real output (b, i, d), and where it follows from that, the output without
    #: diagonal and bias: Σ_{j≠i} of the parts behind the block
    output: Tensor | None = None
    mixed: Tensor | None = None

    def sum_behind_block(self) -> Tensor:
        """``Σ_j`` of the group's parts just behind the block, (b, i, d), without its parts."""
        v = self.factors.sum_of_sources()
        hidden = sum(
            times(v, w) * slope for w, slope in zip(projections(self.ff), self.slopes, strict=True)
        )
        assert isinstance(hidden, Tensor)
        return times(hidden, self.ff.down.weight)

    def shape(self, targets: int, sources: int | None = None) -> Shape:
        """The sizes of a sequence with so many targets, and perhaps other `sources`."""
        return Shape.of_block(
            self.ff,
            self.factors.weights.shape[-1],
            self.reach,
            targets,
            self.ff.up.weight.element_size(),
            None if self.factors.source is None else sources,
        )


@dataclass(frozen=True, kw_only=True)
class ExpertsJob(StageJob):
    """The job of a mixture of experts, of which each target has its own."""

    block: FrozenExperts

    def shape(self, targets: int, sources: int | None = None) -> Shape:
        """The sizes of a sequence with so many targets, and perhaps other `sources`."""
        return Shape.of_block(
            self.block.experts,
            self.factors.weights.shape[-1],
            self.reach,
            targets,
            self.factors.scale.element_size(),
            None if self.factors.source is None else sources,
        )


@dataclass
class PairNorms:
    """The result of a job: off-diagonal norms per scope, and the sum of the block's parts."""

    norms: dict[str, Tensor]  # scope → (b, i, j), 0 where i = j
    mixed: Tensor  # (b, i, d), Σ_{j≠i} of the parts just behind the block
    #: relative error of the parts' sum against `mixed`; None where `mixed` was summed from them
    error: Tensor | None = None


# Parts behind a mixture of experts, for a tile of targets and sources.
#
# Each target has its own experts, so no rows of neurons are shared by all targets of a source.
# Inside a tile the parts themselves are formed, and targets that use the same expert pass it
# together. For many sources, one matrix ``M_i = Σ_e w_ie Σ_k W^e_k diag(r^ke_i) W^e_down`` is
# formed per target.


def expert_tile(job: ExpertsJob, index: int, targets: slice, sources: slice, method: str) -> Tensor:
    """``Σ_e w_ie Σ_k ((F_i(x_j) W^e_k) ⊙ r^ke_i) W^e_down`` for one block, (j, i, d)."""
    weights = job.factors.weights[index, sources, targets]
    weights = weights * job.factors.scale[index, targets, None]
    parts = torch.bmm(weights, job.factors.values[index, sources])  # (j, i, d)
    if method == MATRICES:
        matrices = _matrices(job, index, targets)
        return torch.bmm(parts.transpose(0, 1), matrices).transpose(0, 1)
    total = torch.zeros_like(parts)
    for used, places, rows in job.block.at_targets(index, targets):
        ff = used.ff
        slopes = [slope[0, rows] for slope in used.neurons.slopes]
        neurons = _neurons(job, ff, parts[:, places] * _some(used.inside, rows), slopes)
        out = torch.mm(neurons.flatten(0, 1), ff.down.weight).view(*neurons.shape[:2], -1)
        total.index_add_(1, places, out * _some(used.outside, rows))
    return total


def _neurons(job: ExpertsJob, ff: FeedForward, parts: Tensor, slopes: list[Tensor]) -> Tensor:
    """``Σ_k (F W_k) ⊙ r^k`` of parts (j, t, d) with slopes (t, m), as (j, t, m)."""
    j, t, _ = parts.shape
    flat = parts.flatten(0, 1)
    first: Tensor | None = None
    for w, slope in zip(projections(ff), slopes, strict=True):
        name = "expert" if first is None else "expert gated"
        z = job.buffers.take(name, w, j * t, w.shape[1])
        torch.mm(flat, w, out=z)
        if first is None:
            first = z.view(j, t, -1).mul_(slope)
        else:
            first.addcmul_(z.view(j, t, -1), slope)
    assert first is not None
    return first


def _matrices(job: ExpertsJob, index: int, targets: slice) -> Tensor:
    """M_i of some targets, (i, d, d)."""
    d = job.block.d
    matrices = job.factors.scale.new_zeros(targets.stop - targets.start, d, d)
    for used, _, rows in job.block.at_targets(index, targets):
        ff, first = used.ff, index * job.block.shape[1] + targets.start
        for row in range(rows.start, rows.stop):
            place, factor = used.order[row] - first, used.weights[row]
            scaled = torch.zeros_like(ff.up.weight)
            for w, slope in zip(projections(ff), used.neurons.slopes, strict=True):
                scaled.addcmul_(w, slope[0, row] * factor)
            matrices[place].addmm_(scaled, ff.down.weight)
    return matrices


def _some(weights: Tensor | float, rows: slice) -> Tensor | float:
    """The weights (t, 1) of some of an expert's tokens."""
    return weights[rows] if isinstance(weights, Tensor) else weights


# Norms of the parts behind the feed-forward block, tile by tile.
#
# Behind the nonlinearity ``F_i(x_j) ← Σ_k ((F_i(x_j) W_k) ⊙ r^k_i) W_down``, which no longer
# factors. The first product is almost free, because ``F_i(x_j) W_k = s_i Σ_h A_ijh (U_jh W_k)``
# mixes H rows that are computed once per source. The second product sets the cost of the whole
# method. It is done for a tile of targets and sources at a time, and only a few numbers per pair
# leave the tile.


def feed_forward_norms(
    job: FeedForwardJob | ExpertsJob, lengths: Sequence[int], memory_limit: int | None = None
) -> PairNorms:
    """Norms behind the block for every pair, one sequence of the batch after another."""
    b, n_sources, n, _ = job.factors.weights.shape
    scale = job.factors.scale
    result = PairNorms(
        {scope: scale.new_zeros(b, n, n_sources) for scope in job.scopes},
        scale.new_zeros(b, n, job.factors.basis.shape[-1]),
    )
    sources = [job.sources(index, length) for index, length in enumerate(lengths)]
    products = _head_products(job)
    for index, (length, count) in enumerate(zip(lengths, sources, strict=True)):
        first = choose_plan(job.shape(length, count), memory_limit)
        # Decided for each sequence alone, so that it does not depend on the rest of the batch.
        chosen = None
        if products is not None and first.method == TILES:
            chosen = products.for_tokens(count)
        plan: Plan | None = first
        while plan is not None:
            try:
                _run_sequence(job, index, length, plan, chosen, result)
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


def _head_products(job: FeedForwardJob | ExpertsJob) -> HeadProducts | None:
    """Products of the weights in front of the neurons; experts have too many of them."""
    if isinstance(job, ExpertsJob):
        return None
    return HeadProducts(job.kept, job.factors.basis, projections(job.ff))


def _source_rows(
    job: FeedForwardJob, head_products: ProductTensors | None, index: int, rows: slice
) -> list[Tensor]:
    """``Q^k_jh = U_jh W_k`` for a block of sources, each (j, h, m)."""
    if head_products is None:
        u = job.factors.values[index, rows]  # (j, h, d)
        products = []
        for k, w in enumerate(projections(job.ff)):
            out = job.buffers.take(f"rows {k}", w, u.shape[0] * u.shape[1], w.shape[1])
            product = torch.mm(u.reshape(out.shape[0], -1), w, out=out)
            products.append(product.view(*u.shape[:2], -1))
        return products
    v = job.factors.heads[index, rows].transpose(0, 1)  # (h, j, d_head)
    products = []
    for k, w in enumerate(head_products):
        out = job.buffers.take(f"rows {k}", w, *v.shape[:2], w.shape[-1])
        products.append(torch.bmm(v, w, out=out).transpose(0, 1))
    return products


def _run_sequence(
    job: FeedForwardJob | ExpertsJob,
    index: int,
    n: int,
    plan: Plan,
    head_products: ProductTensors | None,
    result: PairNorms,
) -> None:
    """Fill the result of one sequence by tiles of the plan's size."""
    result.mixed[index].zero_()
    n_sources = job.sources(index, n)
    rows: list[Tensor] | None = None
    for j in range(0, n_sources, plan.sources):
        block = slice(j, min(j + plan.sources, n_sources))
        if plan.method == TILES and isinstance(job, FeedForwardJob):
            rows = _source_rows(job, head_products, index, block)
        for i in range(0, n, plan.targets):
            targets = slice(i, min(i + plan.targets, n))
            low, high = job.reach.sources(targets.start, targets.stop, n_sources)
            sources = slice(max(low, block.start), min(high, block.stop))
            if sources.start >= sources.stop:
                continue
            if isinstance(job, ExpertsJob):
                tile = expert_tile(job, index, targets, sources, plan.method)
            elif rows is None:
                tile = tile_by_matrices(job, index, targets, sources)
            else:
                local = slice(sources.start - j, sources.stop - j)
                tile = tile_by_rows(job, index, targets, sources, [q[local] for q in rows])
            result.mixed[index, targets] += tile.sum(0)
            _emit(job, index, targets, sources, tile, result.norms)


def tile_by_rows(
    job: FeedForwardJob,
    index: int,
    targets: slice,
    sources: slice,
    rows: list[Tensor],
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
        for w, slope in zip(projections(job.ff), job.slopes, strict=True):
            scaled.addcmul_(w, slope[index, target])
        torch.mm(scaled, job.ff.down.weight, out=matrix).mul_(job.factors.scale[index, target])
    return torch.bmm(parts.transpose(0, 1), matrices).transpose(0, 1)


def _emit(
    job: StageJob,
    index: int,
    targets: slice,
    sources: slice,
    tile: Tensor,
    norms: dict[str, Tensor],
) -> None:
    """Write the tile's norms at the block and at each step behind it; overwrites `tile`."""
    for scope, values in scope_norms(job, index, targets, sources, tile):
        norms[scope][index, targets, sources] = values.transpose(0, 1)


def scope_norms(
    job: StageJob,
    index: int,
    targets: slice,
    sources: slice,
    tile: Tensor,
) -> Iterator[tuple[str, Tensor]]:
    """Each scope's norms (j, i) of a tile (j, i, d), which is overwritten step by step."""
    yield job.scope, torch.linalg.vector_norm(tile, dim=-1)
    if job.ordinary is not None:
        yield ORDINARY, torch.linalg.vector_norm(tile[..., job.ordinary], dim=-1)
    for position, step in enumerate(job.tail):
        if isinstance(step, AddBypass):
            step.add_to(tile, index, targets, sources)
            yield step.scope, torch.linalg.vector_norm(tile, dim=-1)
        else:
            step.step.stretch_(tile)
            inverse = step.step.inverse_deviation[index, targets]
            yield step.scope, torch.linalg.vector_norm(tile, dim=-1) * inverse
            if position + 1 < len(job.tail):
                tile.mul_(inverse[:, None])


# The steps behind the feed-forward block that the kernels support, and the sums they keep.


@dataclass(frozen=True)
class Tail:
    """The steps behind the block, in an order that the kernels support: RES LN, RES, LN RES, LN."""

    bypass: AddBypass | None
    normalise: Normalise | None
    norm_first: bool

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
    kinds = [type(step) for step in job.tail]
    if not is_supported(kinds):
        return None
    bypass = next((step for step in job.tail if isinstance(step, AddBypass)), None)
    normalise = next((step for step in job.tail if isinstance(step, Normalise)), None)
    tail = Tail(bypass, normalise, bool(kinds) and kinds[0] is Normalise)
    if tail.factors is not None and tail.factors.weights is not job.factors.weights:
        return None  # the kernels read one set of weights for both
    return tail


@dataclass(frozen=True)
class Slots:
    """The slot of each sum that a kernel keeps; −1: not kept.

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
        """The slots of the sums that a job's norms follow from."""
        norm = tail.norm
        return cls.for_steps(
            ordinary=job.ordinary is not None,
            normed=norm is not None,
            centred=norm is not None and norm.centred,
            bypassed=tail.bypass is not None,
            norm_first=tail.norm_first,
        )

    @classmethod
    def for_steps(
        cls, *, ordinary: bool, normed: bool, centred: bool, bypassed: bool, norm_first: bool
    ) -> Slots:
        """The slots for a tail that consists of these steps."""
        names = ["ordinary"] if ordinary else []
        if normed:
            names += ["normed", *(["mean", "cross"] if centred else [])]
        if bypassed:
            names.append("added")
            if normed and norm_first and centred:
                names.append("added_cross")
        return cls(3 + len(names), **{name: 3 + place for place, name in enumerate(names)})

    @property
    def constants(self) -> dict[str, Any]:
        """The slots as constants of a kernel."""
        return {
            "SLOTS": self.count,
            "ORDINARY": self.ordinary,
            "NORMED": self.normed,
            "NORMED_MEAN": self.mean,
            "NORMED_CROSS": self.cross,
            "ADDED": self.added,
            "ADDED_CROSS": self.added_cross,
        }
