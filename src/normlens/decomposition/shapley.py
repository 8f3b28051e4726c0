"""The Shapley value of the feed-forward nonlinearity, by sampled permutations.

The players of neuron z are the parts of its input, the bias's share among them, and the value of
a coalition is ``v(S) = g(Σ_{j∈S} z_j)`` (``g(Σ a_j) · Σ u_j`` in a gated block). A player's share
is its mean marginal contribution over random orders. In every single order the contributions add
up to ``g(z) − g(0)``, so completeness is exact however few orders are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normlens.components import FeedForward
from normlens.decomposition.activations import activation
from normlens.decomposition.parts import Parts
from normlens.decomposition.plan import Shape, choose_plan, player_memory
from normlens.decomposition.rules import projections
from normlens.decomposition.tiles import FeedForwardJob, TileNorms, scope_norms


@dataclass
class ShapleyResult:
    """Norms behind the block with their standard error, and the vectors that are not pairs."""

    tiles: TileNorms
    diagonal: Tensor  # (b, i, d)
    bias: Tensor  # (b, i, d)
    standard_error: dict[str, Tensor]  # scope → (b, i, j)


def shapley_norms(
    job: FeedForwardJob,
    parts: Parts,
    lengths: Sequence[int],
    samples: int,
    seed: int,
    memory_limit: int | None = None,
) -> ShapleyResult:
    """Sampled Shapley parts behind the block; the same orders for every target of a sequence."""
    b, n = job.factors.scale.shape
    empty = parts.own.new_zeros
    d = job.ff.down.weight.shape[1]
    result = ShapleyResult(
        TileNorms({scope: empty(b, n, n) for scope in job.scopes}, empty(b, n, d)),
        empty(b, n, d),
        empty(b, n, d),
        {scope: empty(b, n, n) for scope in job.scopes},
    )
    for index, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(length + 1, generator=generator) for _ in range(samples)]
        step = _targets_at_once(job.shape(length), memory_limit)
        for i in range(0, length, step):
            targets = slice(i, min(i + step, length))
            _run_targets(job, parts, index, targets, length, orders, result)
    return result


def _targets_at_once(shape: Shape, limit: int | None) -> int:
    """As many targets as the plan's tiles have, fewer where all their players do not fit."""
    targets = choose_plan(shape, limit).targets
    if limit is None:
        return targets
    return max(1, min(targets, limit // player_memory(shape)))


def _players(job: FeedForwardJob, parts: Parts, index: int, targets: slice, n: int) -> list[Tensor]:
    """Each input projection of every player, (n + 1, i, m); the last player is the bias."""
    rows = torch.arange(targets.start, targets.stop)
    local = rows - targets.start
    weights = job.factors.weights[index, :n, targets] * job.factors.scale[index, targets, None]
    biases = [job.ff.up.bias] if job.ff.gate is None else [job.ff.gate.bias, job.ff.up.bias]
    players = []
    for w, bias in zip(projections(job.ff), biases, strict=True):
        z = torch.empty(n + 1, len(rows), w.shape[1], dtype=w.dtype, device=w.device)
        torch.bmm(weights, job.factors.values[index, :n] @ w, out=z[:n])
        z[rows, local] = parts.own[index, targets] @ w
        z[n] = parts.bias.vectors[index, targets] @ w
        if bias is not None:
            z[n] += bias
        players.append(z)
    return players


def _coalition_value(ff: FeedForward, sums: list[Tensor]) -> Tensor:
    g = activation(ff.activation).value
    return g(sums[0]) if ff.gate is None else g(sums[0]) * sums[1]


def _run_targets(
    job: FeedForwardJob,
    parts: Parts,
    index: int,
    targets: slice,
    n: int,
    orders: list[Tensor],
    result: ShapleyResult,
) -> None:
    ff = job.ff
    players = _players(job, parts, index, targets, n)
    start = _coalition_value(ff, [torch.zeros_like(z[:1]) for z in players])  # (1, i, m)
    total = players[0].new_zeros(n + 1, *players[0].shape[1:2], ff.down.weight.shape[1])
    squares = {scope: total.new_zeros(n, total.shape[1]) for scope in job.scopes}
    sources = slice(0, n)
    for order in orders:
        values = _coalition_value(ff, [z[order].cumsum(0) for z in players])
        values[1:] -= values[:-1].clone()
        values[:1] -= start
        marginal = torch.empty_like(values)
        marginal[order] = values
        one = marginal @ ff.down.weight  # (n + 1, i, d)
        total += one
        for scope, norms in scope_norms(job, index, targets, sources, one[:n], bypass=False):
            squares[scope] += norms.square()
    mean = total / len(orders)

    rows = torch.arange(targets.start, targets.stop)
    local = rows - targets.start
    result.diagonal[index, targets] = mean[rows, local]
    bias = mean[n] + start[0] @ ff.down.weight
    result.bias[index, targets] = bias if ff.down.bias is None else bias + ff.down.bias
    shares = mean[:n]
    result.tiles.mixed[index, targets] = shares.sum(0) - result.diagonal[index, targets]

    for scope, norms in scope_norms(job, index, targets, sources, shares.clone(), bypass=False):
        variance = (squares[scope] / len(orders) - norms.square()).clamp_min(0)
        error = (variance / (len(orders) - 1)).sqrt() if len(orders) > 1 else variance + torch.nan
        result.standard_error[scope][index, targets, sources] = error.transpose(0, 1)
    for scope, norms in scope_norms(job, index, targets, sources, shares):
        result.tiles.norms[scope][index, targets, sources] = norms.transpose(0, 1)
