"""Norms of the parts behind the feed-forward block, tile by tile.

Behind the nonlinearity ``F_i(x_j) ← Σ_k ((F_i(x_j) W_k) ⊙ r^k_i) W_down``, which no longer factors.
The first product is almost free, because ``F_i(x_j) W_k = s_i Σ_h A_ijh (U_jh W_k)`` mixes H rows
that are computed once per source. The second product sets the cost of the whole method. It is done
for a tile of targets and sources at a time, and only a few numbers per pair leave the tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from normlens.decomposition.costs.tiles import TILES
from normlens.decomposition.expert_tiles import expert_tile
from normlens.decomposition.feedforward_job import (
    ORDINARY,
    AddBypass,
    ExpertsJob,
    FeedForwardJob,
    PairNorms,
    StageJob,
)
from normlens.decomposition.head_products import HeadProducts, ProductTensors
from normlens.decomposition.plan import Plan, choose_plan
from normlens.decomposition.rules import projections
from normlens.errors import MemoryLimitError
from normlens.memory_shortage import is_out_of_memory, process_limit


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
            if step.factors is not None:
                weights = step.factors.weights[index, sources, targets]
                weights = weights * step.factors.scale[index, targets, None]
                tile.baddbmm_(weights, step.factors.values[index, sources])
            yield step.scope, torch.linalg.vector_norm(tile, dim=-1)
        else:
            step.step.stretch_(tile)
            inverse = step.step.inverse_deviation[index, targets]
            yield step.scope, torch.linalg.vector_norm(tile, dim=-1) * inverse
            if position + 1 < len(job.tail):
                tile.mul_(inverse[:, None])
