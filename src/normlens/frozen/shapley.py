"""The Shapley value of the feed-forward nonlinearity, by sampled permutations.

The players of neuron z are the parts of its input, the bias's share among them, and the value of a
coalition is ``v(S) = g(Σ_{j∈S} z_j)`` (``g(Σ a_j) · Σ u_j`` in a gated block). A player's share is
its mean marginal contribution over random orders. In every single order the contributions add up
to ``g(z) − g(0)``, so completeness is exact however few orders are drawn.

All sources of a layer play together: its own tokens, those of another sequence, and the bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normlens.frozen.feedforward import nonlinearity
from normlens.frozen.parts import FrozenNorm, Parts
from normlens.frozen.tiles import Job, scope_norms
from normlens.layers import FeedForward
from normlens.options import AnalysisOptions
from normlens.plan.costs import sampled_targets


@dataclass
class ShapleyResult:
    """Norms behind the block with their standard errors, and the vectors of diagonal and bias."""

    sums: Parts  # just behind the block, without factors
    norms: dict[str, Tensor]  # scope → (b, i, j), of the block and of every step behind it
    standard_error: dict[str, Tensor]  # like `norms`, of each norm; NaN where there is none


def shapley_norms(
    ff: FeedForward,
    jobs: Sequence[Job],
    parts: Parts,
    lengths: Sequence[int],
    options: AnalysisOptions,
) -> ShapleyResult:
    """Norms of sampled Shapley parts; every target of a sequence has the same orders.

    There is a job for each group of sources.
    """
    b, n, _ = parts.own.shape
    columns = sum(job.factors.weights.shape[1] for job in jobs)
    if jobs[-1].factors.source is not None:  # the layer's tokens have columns, source or not
        columns += n
    empty, vectors = (
        parts.own.new_zeros(b, n, columns),
        parts.own.new_zeros(b, n, ff.down.weight.shape[1]),
    )
    result = ShapleyResult(
        Parts(vectors, vectors.clone(), vectors.clone()),
        {scope: empty.clone() for scope in jobs[0].scopes},
        {scope: torch.full_like(empty, torch.nan) for scope in jobs[0].scopes},
    )
    for index, length in enumerate(lengths):
        game = _Game(ff, jobs, parts, index, length)
        generator = torch.Generator().manual_seed(int(options.seed))
        orders = [torch.randperm(game.players, generator=generator) for _ in range(options.samples)]
        job = max(jobs, key=lambda job: job.factors.source is not None)
        shape = job.shape(length, game.players - 1 - length)
        step = sampled_targets(shape, len(job.scopes), options.limit)
        for i in range(0, length, step):
            game.play(slice(i, min(i + step, length)), orders, result)
    return result


class _Game:
    """The players of one sequence: its n tokens, those of other sequences, and the bias, last."""

    def __init__(self, ff: FeedForward, jobs: Sequence[Job], parts: Parts, index: int, n: int):
        self.ff, self.parts, self.index = ff, parts, index
        self.value = nonlinearity(ff).value
        self.groups: list[tuple[Job, slice, slice]] = []  # with the players and columns of each
        end, column = n, 0
        for job in jobs:
            first, count = 0 if job.factors.source is None else end, job.sources(index, n)
            players, columns = slice(first, first + count), slice(column, column + count)
            self.groups.append((job, players, columns))
            end, column = max(end, players.stop), column + job.factors.weights.shape[1]
        self.players = end + 1

    def play(self, targets: slice, orders: list[Tensor], result: ShapleyResult) -> None:
        """Fill the result of some targets."""
        index, down, sums = self.index, self.ff.down, result.sums
        assert sums.bias is not None
        assert sums.mixed is not None
        players = self._shares(targets)
        mean = torch.zeros_like(players[0])  # (players, i, m)
        for order in orders:
            mean += self._contributions(players, order)
        mean /= len(orders)
        shares = mean @ down.weight  # (players, i, d)
        rows = torch.arange(targets.start, targets.stop)
        own = shares[rows, rows - targets.start]
        sums.own[index, targets] = own
        sums.bias[index, targets] = shares[-1] + down(self._nobody(players))[0]
        sums.mixed[index, targets] = shares[:-1].sum(0) - own
        if len(orders) > 1:  # a single order has no spread
            self._spread(targets, orders, players, mean, shares, result)
        for job, group, columns in self.groups:
            sources = slice(0, group.stop - group.start)
            for scope, sizes in scope_norms(job, index, targets, sources, shares[group]):
                result.norms[scope][index, targets, columns] = sizes.T

    def _shares(self, targets: slice) -> list[Tensor]:
        """The players' shares of each input projection, (players, i, m)."""
        parts, index = self.parts, self.index
        rows = torch.arange(targets.start, targets.stop)
        players = []
        for linear in self.ff.inputs:
            z = linear.weight.new_zeros(self.players, len(rows), linear.weight.shape[1])
            for job, group, _ in self.groups:
                sources = slice(0, group.stop - group.start)
                alpha, values = job.factors.tile(index, targets, sources)
                torch.bmm(alpha, values @ linear.weight, out=z[group])
            z[rows, rows - targets.start] = parts.own[index, targets] @ linear.weight
            if parts.bias is not None:
                z[-1] = parts.bias.expand_as(parts.own)[index, targets] @ linear.weight
            if linear.bias is not None:
                z[-1] += linear.bias
            players.append(z)
        return players

    def _contributions(self, players: list[Tensor], order: Tensor) -> Tensor:
        """What each player adds to the hidden vector as they join in `order`, (players, i, m)."""
        values = self.value(*(z[order].cumsum(0) for z in players))
        values[1:] -= values[:-1].clone()
        values[:1] -= self._nobody(players)
        contributions = torch.empty_like(values)
        contributions[order] = values
        return contributions

    def _nobody(self, players: list[Tensor]) -> Tensor:
        """The hidden vector without any player, (1, i, m)."""
        return self.value(*(torch.zeros_like(z[:1]) for z in players))

    # The standard error of each norm.
    #
    # A part is a mean over S orders, ``v = Σ_s v_s / S``. To first order its norm changes with v's
    # component along v alone (delta method), so
    #
    #     SE(‖v‖) = sd_s(v_s · v/‖v‖) / √S
    #
    # which is less than the spread ``√(E‖v_s − v‖² / S)`` of the vector. Steps behind the block are
    # affine in the part, so ``v/‖v‖`` is carried back through them and through W_down once; then
    # each order costs a scalar product of hidden vectors.
    #
    # This is the spread of the norm from seed to seed. The norm of a mean over few orders is also
    # biased upwards, by about the squared spread across v divided by 2‖v‖; more samples reduce
    # both.

    def _spread(
        self,
        targets: slice,
        orders: list[Tensor],
        players: list[Tensor],
        mean: Tensor,
        shares: Tensor,
        result: ShapleyResult,
    ) -> None:
        """Write the standard errors of some targets."""
        down, count = self.ff.down.weight, len(orders)
        spreads = []  # players, ∂‖F‖/∂h, its mean, where Σ (deviation)² goes
        for job, group, columns in self.groups:
            for scope, gradient in _gradients(job, self.index, targets, shares[group]):
                at_neurons = gradient @ down.T
                along = torch.linalg.vecdot(at_neurons, mean[group])
                error = result.standard_error[scope][self.index, targets, columns].zero_()
                spreads.append((group, at_neurons, along, error))
        for order in orders:
            joined = self._contributions(players, order)
            for group, at_neurons, along, error in spreads:
                deviation = torch.linalg.vecdot(at_neurons, joined[group]) - along
                error += deviation.square_().T
        for *_, error in spreads:
            error.div_(count * (count - 1)).sqrt_()


def _gradients(job: Job, index: int, targets: slice, parts: Tensor) -> Iterator[tuple[str, Tensor]]:
    """``∂‖F‖/∂part`` (j, i, d) of each scope's norm, for the part just behind the block."""
    v, norms = parts.clone(), list[FrozenNorm]()
    yield job.scope, _direction(v)
    for scope, step in job.tail.items():
        if isinstance(step, FrozenNorm):
            inverse = step.stretch_tile(v, index, targets)
            v.mul_(inverse[:, None])
            norms.append(replace(step, inverse_deviation=inverse))
        else:
            if (added := step.factors_of(job.factors.source)) is not None:
                v.baddbmm_(*added.tile(index, targets, slice(0, len(parts))))
            if job.factors.source is None:  # sources are the targets' own tokens
                rows = torch.arange(targets.start, targets.stop)
                v[rows, rows - targets.start] += step.own[index, targets]
        gradient = _direction(v)
        for passed in reversed(norms):
            gradient = passed.adjoint(gradient)
        yield scope, gradient


def _direction(v: Tensor) -> Tensor:
    """``v/‖v‖``; 0 for a part that is 0."""
    size = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v / size.where(size > 0, torch.ones_like(size))
