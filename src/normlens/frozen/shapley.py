"""The Shapley value of the feed-forward nonlinearity, by sampled permutations.

The players of neuron z are the parts of its input, the bias's share among them, and the value of a
coalition is ``v(S) = g(Σ_{j∈S} z_j)`` (``g(Σ a_j) · Σ u_j`` in a gated block). A player's share is
its mean marginal contribution over random orders. In every single order the contributions add up
to ``g(z) − g(0)``, so completeness is exact however few orders are drawn.

All sources of a layer play together: its own tokens, those of another sequence, and the bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normlens.frozen.activations import Nonlinearity, activation
from normlens.frozen.norm import FrozenNorm
from normlens.frozen.parts import Parts
from normlens.frozen.tiles import FeedForwardJob, Normalise, scope_norms
from normlens.options import Settings
from normlens.plan.costs import sampled_targets


@dataclass
class ShapleyResult:
    """Norms behind the block with their standard errors, and the vectors of diagonal and bias."""

    norms: list[dict[str, Tensor]]  # of each group of sources, scope → (b, i, j)
    standard_error: list[dict[str, Tensor]]  # like `norms`, of each norm; NaN where there is none
    mixed: Tensor  # (b, i, d), Σ_{j≠i} of the parts just behind the block
    diagonal: Tensor  # (b, i, d)
    bias: Tensor  # (b, i, d)


def shapley_norms(
    jobs: Sequence[FeedForwardJob], parts: Parts, lengths: Sequence[int], settings: Settings
) -> ShapleyResult:
    """Norms of sampled Shapley parts; every target of a sequence has the same orders.

    There is a job for each group of sources.
    """
    (b, n, _), d, scopes = parts.own.shape, jobs[0].ff.down.weight.shape[1], jobs[0].scopes
    made = parts.own.new_zeros(b, n, d)
    norms: list[dict[str, Tensor]] = []
    for job in jobs:
        empty = parts.own.new_zeros(b, n, job.factors.weights.shape[1])
        norms.append({scope: empty.clone() for scope in scopes})
    errors = [{name: torch.full_like(m, torch.nan) for name, m in maps.items()} for maps in norms]
    result = ShapleyResult(norms, errors, made, made.clone(), made.clone())
    for index, length in enumerate(lengths):
        game = _Game(jobs, parts, index, length)
        generator = torch.Generator().manual_seed(settings.seed)
        orders = [
            torch.randperm(game.players, generator=generator) for _ in range(settings.samples)
        ]
        job = max(jobs, key=lambda job: job.factors.source is not None)
        shape = job.shape(length, game.players - 1 - length)
        step = sampled_targets(shape, len(scopes), settings.memory_limit)
        for i in range(0, length, step):
            game.play(slice(i, min(i + step, length)), orders, result)
    return result


class _Game:
    """The players of one sequence: its n tokens, those of other sequences, and the bias, last."""

    def __init__(self, jobs: Sequence[FeedForwardJob], parts: Parts, index: int, n: int):
        self.jobs, self.parts, self.index, self.n = jobs, parts, index, n
        self.ff = jobs[0].ff
        self.value = Nonlinearity(activation(self.ff.activation)).value
        self.groups: list[slice] = []  # the players of each job
        end = n
        for job in jobs:
            if job.factors.source is None:
                self.groups.append(slice(0, n))
            else:
                self.groups.append(slice(end, end + job.sources(index, n)))
                end = self.groups[-1].stop
        self.players = end + 1

    def play(self, targets: slice, orders: list[Tensor], result: ShapleyResult) -> None:
        """Fill the result of some targets."""
        index, down = self.index, self.ff.down
        players = self._shares(targets)
        mean = torch.zeros_like(players[0])  # (players, i, m)
        for order in orders:
            mean += self._contributions(players, order)
        mean /= len(orders)
        shares = mean @ down.weight  # (players, i, d)
        rows = torch.arange(targets.start, targets.stop)
        own = shares[rows, rows - targets.start]
        result.diagonal[index, targets] = own
        result.bias[index, targets] = shares[-1] + down(self._nobody(players))[0]
        result.mixed[index, targets] = shares[:-1].sum(0) - own
        if len(orders) > 1:  # a single order has no spread
            self._spread(targets, orders, players, mean, shares, result)
        for job, group, norms in zip(self.jobs, self.groups, result.norms, strict=True):
            sources = slice(0, group.stop - group.start)
            for scope, sizes in scope_norms(job, index, targets, sources, shares[group]):
                norms[scope][index, targets, sources] = sizes.transpose(0, 1)

    def _shares(self, targets: slice) -> list[Tensor]:
        """The players' shares of each input projection, (players, i, m)."""
        parts, index = self.parts, self.index
        rows = torch.arange(targets.start, targets.stop)
        players = []
        for linear in self.ff.inputs:
            z = linear.weight.new_zeros(self.players, len(rows), linear.weight.shape[1])
            for job, group in zip(self.jobs, self.groups, strict=True):
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
        for job, group, errors in zip(self.jobs, self.groups, result.standard_error, strict=True):
            for scope, gradient in _gradients(job, self.index, targets, shares[group]):
                at_neurons = gradient @ down.T
                along = torch.linalg.vecdot(at_neurons, mean[group])
                error = errors[scope][self.index, targets, : along.shape[0]].zero_()
                spreads.append((group, at_neurons, along, error))
        for order in orders:
            joined = self._contributions(players, order)
            for group, at_neurons, along, error in spreads:
                deviation = torch.linalg.vecdot(at_neurons, joined[group]) - along
                error += deviation.square_().T
        for *_, error in spreads:
            error.div_(count * (count - 1)).sqrt_()


def _gradients(
    job: FeedForwardJob, index: int, targets: slice, parts: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """``∂‖F‖/∂part`` (j, i, d) of each scope's norm, for the part just behind the block."""
    v, norms = parts.clone(), list[FrozenNorm]()
    yield job.scope, _direction(v)
    for step in job.tail:
        step.pass_tile(v, index, targets, slice(0, len(parts)))
        if isinstance(step, Normalise):
            v.mul_(step.step.inverse_deviation[index, targets, None])
            norms.append(step.step)
        elif job.factors.source is None:  # sources are the targets' own tokens
            rows = torch.arange(targets.start, targets.stop)
            v[rows, rows - targets.start] += step.own[index, targets]
        gradient = _direction(v)
        for passed in reversed(norms):
            gradient = passed.stretch_adjoint(gradient)
            gradient *= passed.inverse_deviation[index, targets, None]
        yield step.scope, gradient


def _direction(v: Tensor) -> Tensor:
    """``v/‖v‖``; 0 for a part that is 0."""
    size = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v / size.where(size > 0, torch.ones_like(size))
