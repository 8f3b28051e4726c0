"""Norms of the parts behind the feed-forward block with PyTorch, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import itemgetter

import torch
from torch import Tensor

from normlens.errors import MemoryLimitError, is_out_of_memory, process_limit
from normlens.frozen.head_products import KeptProducts
from normlens.frozen.parts import Factors, FrozenBlock, FrozenNorm, Parts
from normlens.gpu.matmul import times
from normlens.layers import Experts, FeedForward
from normlens.plan.costs import TILES, Plan, Shape, choose_plan, head_products_pay

# Memory that tiles share, because fresh pages for each tile would cost more than filling them.


@dataclass
class Buffers:
    """Named pieces of memory that grow to the largest shape they were asked for."""

    _storage: dict[tuple[str, torch.dtype, torch.device], Tensor] = field(default_factory=dict)

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """An uninitialised tensor of `shape` in the piece called `name`, of `like`'s kind."""
        size, key = prod(shape), (name, like.dtype, like.device)
        stored = self._storage.get(key)
        if stored is None or stored.numel() < size:
            self._storage.pop(key, None)  # free the old piece before taking a larger one
            stored = self._storage[key] = like.new_empty(size)
        return stored[:size].view(shape)

    def clear(self) -> None:
        self._storage.clear()


# What a stage behind the feed-forward block is made of: the block, parts, and the steps behind it.
#
# A job is one group of sources at one layer's block, with the steps that follow. Tiles, the fused
# kernels (`gpu`) and the Shapley rule (`shapley`) all take a job and return norms of pairs.


#: Name of the map just behind the block that leaves out special dimensions.
ORDINARY = "ordinary"

Product = Callable[[Tensor, Tensor], Tensor]


class FeedForwardBlock(FrozenBlock):
    """A feed-forward block, behind which parts exist only in tiles or kernels."""

    ff: FeedForward | Experts  # the block as the model has it

    def rows(self, job: Job, index: int, sources: slice, count: int) -> list[Tensor]:
        """What the tiles of some of a sequence's `count` sources share."""
        return []

    def tile(
        self, job: Job, index: int, targets: slice, sources: slice, rows: Iterable[Tensor]
    ) -> Tensor:
        """The parts of some pairs just behind the block, (j, i, d), by the sources' `rows`."""
        raise NotImplementedError

    def matrices(self, index: int, targets: slice) -> Tensor:
        """The block of each of some targets as one matrix, (i, d, d)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Job:
    """One group of sources at the feed-forward block of one layer, and the steps behind it."""

    block: FeedForwardBlock
    factors: Factors  # the group's parts at the block's input
    scope: str  # just behind the block
    #: the norms behind it and the parts that residual connections add, by the scope that each ends
    tail: Mapping[str, FrozenNorm | Parts]
    buffers: Buffers = field(default_factory=Buffers)
    #: dimensions of the block's output in one more map, `ORDINARY`
    ordinary: Tensor | None = None
    kept: KeptProducts | None = None  # products of this layer's weights, if there are any
    #: Σ_{j≠i} of the parts behind the block (b, i, d), which the kernels' parts are compared with:
    #: of an only group it is the block's output without diagonal and bias
    mixed: Tensor | None = None

    @property
    def scopes(self) -> list[str]:
        ordinary = [] if self.ordinary is None else [ORDINARY]
        return [self.scope, *ordinary, *self.tail]

    def sources(self, index: int, targets: int) -> int:
        """The number of sources of the sequence at `index`, which has so many targets."""
        return targets if self.factors.lengths is None else self.factors.lengths[index]

    def shape(self, targets: int, sources: int) -> Shape:
        """The sizes of a sequence with so many targets and sources."""
        heads, itemsize = self.factors.weights.shape[-1], self.factors.scale.element_size()
        others = None if self.factors.source is None else sources
        reach = self.factors.reach
        return Shape.of_block(self.block.ff, heads, reach, targets, itemsize, others)

    def uses_head_products(self, tokens: int) -> bool:
        """Whether that many tokens use products B_h W_k, or U W_k costs less."""
        _, d_head, d = self.factors.basis.shape
        return self.kept is not None or head_products_pay(d_head, d, tokens)

    def head_products(self, product: Product = times) -> tuple[Tensor, ...]:
        """``B_h W_k`` (h, d_head, m) for each input projection: kept, or formed now."""
        if self.kept is not None:
            return self.kept.tensors
        assert isinstance(self.block.ff, FeedForward)
        return tuple(product(self.factors.basis, each.weight) for each in self.block.ff.inputs)

    @cached_property
    def formed_products(self) -> tuple[Tensor, ...]:
        """`head_products`, formed once for all sequences and tiles."""
        return self.head_products()


@dataclass
class PairNorms:
    """The result of a job: off-diagonal norms per scope, and the sum of the block's parts."""

    norms: dict[str, Tensor]  # scope → (b, i, j), 0 where i = j
    mixed: Tensor  # (b, i, d), Σ_{j≠i} of the parts just behind the block
    precision: str  # of the products
    #: errors of kernels' parts: of their "sum" against `mixed`, and of a "sample" of their norms;
    #: none where `mixed` was summed from the parts
    errors: dict[str, Tensor] = field(default_factory=dict)


# Norms of the parts behind the feed-forward block, tile by tile.
#
# Behind the nonlinearity ``F_i(x_j) ← Σ_k ((F_i(x_j) W_k) ⊙ r^k_i) W_down``, which no longer
# factors. The first product is almost free, because ``F_i(x_j) W_k = s_i Σ_h A_ijh (U_jh W_k)``
# mixes H rows that are computed once per source. The second product sets the cost of the whole
# method. It is done for a tile of targets and sources at a time, and only a few numbers per pair
# leave the tile.


def feed_forward_norms(
    job: Job, lengths: Sequence[int], memory_limit: int | None = None
) -> PairNorms:
    """Norms behind the block for every pair, one sequence of the batch after another."""
    b, n_sources, n, _ = job.factors.weights.shape
    scale, d = job.factors.scale, job.factors.basis.shape[-1]
    precision = str(scale.dtype).removeprefix("torch.")
    result = PairNorms({}, scale.new_zeros(b, n, d), precision)
    for scope in job.scopes:
        result.norms[scope] = scale.new_zeros(b, n, n_sources)
    for index, length in enumerate(lengths):
        shape = job.shape(length, job.sources(index, length))
        plan: Plan | None = choose_plan(shape, memory_limit)
        while plan is not None:
            try:
                _run_sequence(job, index, length, plan, result)
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


def _run_sequence(job: Job, index: int, n: int, plan: Plan, result: PairNorms) -> None:
    """Fill the result of one sequence by tiles of the plan's size."""
    result.mixed[index].zero_()
    n_sources = job.sources(index, n)
    for j in range(0, n_sources, plan.sources):
        block = slice(j, min(j + plan.sources, n_sources))
        rows = job.block.rows(job, index, block, n_sources) if plan.method == TILES else []
        for i in range(0, n, plan.targets):
            targets = slice(i, min(i + plan.targets, n))
            low, high = job.factors.reach.sources(targets.start, targets.stop, n_sources)
            sources = slice(max(low, block.start), min(high, block.stop))
            if sources.start >= sources.stop:
                continue
            if plan.method == TILES:
                some = slice(sources.start - j, sources.stop - j)
                tile = job.block.tile(job, index, targets, sources, map(itemgetter(some), rows))
            else:
                tile = _tile_by_matrices(job, index, targets, sources)
            result.mixed[index, targets] += tile.sum(0)
            for scope, values in scope_norms(job, index, targets, sources, tile):
                result.norms[scope][index, targets, sources] = values.transpose(0, 1)


def _tile_by_matrices(job: Job, index: int, targets: slice, sources: slice) -> Tensor:
    """``F_i(x_j) M_i`` with the block of each target as a matrix M_i, (j, i, d)."""
    matrices = job.block.matrices(index, targets)
    matrices.mul_(job.factors.scale[index, targets, None, None])
    weights = job.factors.weights[index, sources, targets]
    parts = torch.bmm(weights, job.factors.values[index, sources])  # (j, i, d)
    return torch.bmm(parts.transpose(0, 1), matrices).transpose(0, 1)


def scope_norms(
    job: Job, index: int, targets: slice, sources: slice, tile: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Each scope's norms (j, i) of a tile (j, i, d), which is overwritten step by step."""
    yield job.scope, torch.linalg.vector_norm(tile, dim=-1)
    if job.ordinary is not None:
        yield ORDINARY, torch.linalg.vector_norm(tile[..., job.ordinary], dim=-1)
    last = len(job.tail) - 1
    for place, (scope, step) in enumerate(job.tail.items()):
        inverse: Tensor | None = None
        if isinstance(step, FrozenNorm):
            inverse = step.stretch_tile(tile, index, targets)
        elif (added := step.factors_of(job.factors.source)) is not None:
            tile.baddbmm_(*added.tile(index, targets, sources))
        norms = torch.linalg.vector_norm(tile, dim=-1)
        yield scope, norms if inverse is None else norms * inverse
        if inverse is not None and place < last:
            tile.mul_(inverse[:, None])
