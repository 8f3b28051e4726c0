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
from normlens.decomposition.feedforward_job import FeedForwardJob, PairNorms
from normlens.decomposition.parts import Parts
from normlens.decomposition.plan import sampled_targets
from normlens.decomposition.rules import projections
from normlens.decomposition.shapley_error import NormSpread
from normlens.decomposition.tiles import scope_norms


@dataclass
class ShapleyResult:
    """Norms behind the block with their standard errors, and the vectors of diagonal and bias."""

    pairs: PairNorms
    diagonal: Tensor  # (b, i, d)
    bias: Tensor  # (b, i, d)
    standard_error: dict[str, Tensor]  # scope → (b, i, j), of each norm


def shapley_norms(
    job: FeedForwardJob,
    parts: Parts,
    lengths: Sequence[int],
    samples: int,
    seed: int,
    memory_limit: int | None = None,
) -> ShapleyResult:
    """Norms of sampled Shapley parts; every target of a sequence has the same orders."""
    b, n = job.factors.scale.shape
    empty = parts.own.new_zeros
    d = job.ff.down.weight.shape[1]
    norms = {scope: empty(b, n, n) for scope in job.scopes}
    result = ShapleyResult(
        PairNorms(norms, empty(b, n, d)),
        empty(b, n, d),
        empty(b, n, d),
        {scope: torch.full_like(zeros, torch.nan) for scope, zeros in norms.items()},
    )
    for index, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(length + 1, generator=generator) for _ in range(samples)]
        step = sampled_targets(job.shape(length), len(job.scopes), memory_limit)
        for i in range(0, length, step):
            targets = slice(i, min(i + step, length))
            _run_targets(job, parts, index, targets, length, orders, result)
    return result


def _players(job: FeedForwardJob, parts: Parts, index: int, targets: slice, n: int) -> list[Tensor]:
    """The players' shares of each input projection, (n + 1, i, m); the bias is the last player."""
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
    """``g(Σ z)``, or ``g(Σ a) · Σ u`` in a gated block."""
    g = activation(ff.activation).value
    return g(sums[0]) if ff.gate is None else g(sums[0]) * sums[1]


def _contributions(ff: FeedForward, players: list[Tensor], order: Tensor) -> Tensor:
    """What each player adds to the hidden vector when players join in `order`, (n + 1, i, m)."""
    values = _coalition_value(ff, [z[order].cumsum(0) for z in players])
    values[1:] -= values[:-1].clone()
    values[:1] -= _empty_coalition(ff, players)
    contributions = torch.empty_like(values)
    contributions[order] = values
    return contributions


def _empty_coalition(ff: FeedForward, players: list[Tensor]) -> Tensor:
    """The hidden vector without any player, (1, i, m)."""
    return _coalition_value(ff, [torch.zeros_like(z[:1]) for z in players])


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
    mean = torch.zeros_like(players[0])  # (n + 1, i, m)
    for order in orders:
        mean += _contributions(ff, players, order)
    mean /= len(orders)
    shares = mean @ ff.down.weight  # (n + 1, i, d)

    rows = torch.arange(targets.start, targets.stop)
    result.diagonal[index, targets] = shares[rows, rows - targets.start]
    bias = shares[n] + _empty_coalition(ff, players)[0] @ ff.down.weight
    result.bias[index, targets] = bias if ff.down.bias is None else bias + ff.down.bias
    shares = shares[:n]
    result.pairs.mixed[index, targets] = shares.sum(0) - result.diagonal[index, targets]

    sources = slice(0, n)
    if len(orders) > 1:  # a single order has no spread
        spread = NormSpread(job, index, targets, mean[:n], shares)
        for order in orders:
            spread.add(_contributions(ff, players, order)[:n])
        for scope, error in spread.standard_error(len(orders)):
            result.standard_error[scope][index, targets, sources] = error
    for scope, norms in scope_norms(job, index, targets, sources, shares):
        result.pairs.norms[scope][index, targets, sources] = norms.transpose(0, 1)
