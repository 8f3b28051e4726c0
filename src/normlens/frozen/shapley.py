"""The Shapley value of the feed-forward nonlinearity, by sampled permutations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normlens.frozen.activations import activation
from normlens.frozen.norm import FrozenNorm
from normlens.frozen.parts import Parts
from normlens.frozen.rules import projections
from normlens.frozen.tiles import AddBypass, FeedForwardJob, scope_norms
from normlens.layers import FeedForward
from normlens.plan.costs import Shape
from normlens.plan.method import sampled_targets

# The standard error of each norm of a sampled Shapley map.
#
# A part is a mean over S orders, ``v = Σ_s v_s / S``. To first order its norm changes with v's
# component along v alone (delta method), so
#
#     SE(‖v‖) = sd_s(v_s · v/‖v‖) / √S
#
# which is less than the spread ``√(E‖v_s − v‖² / S)`` of the vector. Steps behind the block are
# affine in the part, so ``v/‖v‖`` is carried back through them and through W_down once; then each
# order costs a scalar product of hidden vectors.
#
# This is the spread of the norm from seed to seed. The norm of a mean over few orders is also
# biased upwards, by about the squared spread across v divided by 2‖v‖; more samples reduce both.


class NormSpread:
    """The spread over orders of the norms of a block of targets, added up order by order."""

    def __init__(
        self, job: FeedForwardJob, index: int, targets: slice, hidden: Tensor, parts: Tensor
    ):
        """`hidden` (j, i, m) are means over all orders, and `parts` (j, i, d) those × W_down."""
        down = job.ff.down.weight
        self._gradients = {
            scope: gradient @ down.T for scope, gradient in _gradients(job, index, targets, parts)
        }
        self._means = {
            scope: torch.linalg.vecdot(gradient, hidden)
            for scope, gradient in self._gradients.items()
        }
        self._squares = {scope: torch.zeros_like(mean) for scope, mean in self._means.items()}

    def add(self, hidden: Tensor) -> None:
        """Add the contributions (j, i, m) of one order."""
        for scope, gradient in self._gradients.items():
            deviation = torch.linalg.vecdot(gradient, hidden) - self._means[scope]
            self._squares[scope] += deviation.square_()

    def standard_error(self, samples: int) -> Iterator[tuple[str, Tensor]]:
        """Each scope's standard errors (i, j) after so many orders."""
        for scope, squares in self._squares.items():
            yield scope, (squares / (samples * (samples - 1))).sqrt().transpose(0, 1)


def _gradients(
    job: FeedForwardJob, index: int, targets: slice, parts: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """``∂‖F‖/∂part`` (j, i, d) of each scope's norm, for the part just behind the block."""
    sources = slice(0, parts.shape[0])
    v = parts.clone()
    yield job.scope, _direction(v)
    norms: list[FrozenNorm] = []
    for step in job.tail:
        if isinstance(step, AddBypass):
            step.add_to(v, index, targets, sources)
            if job.factors.source is None:  # sources are the targets' own tokens
                rows = torch.arange(targets.start, targets.stop)
                v[rows, rows - targets.start] += step.own[index, targets]
        else:
            v = step.step.stretch(v) * step.step.inverse_deviation[index, targets, None]
            norms.append(step.step)
        gradient = _direction(v)
        for passed in reversed(norms):
            gradient = passed.stretch_adjoint(gradient)
            gradient *= passed.inverse_deviation[index, targets, None]
        yield step.scope, gradient


def _direction(v: Tensor) -> Tensor:
    """``v/‖v‖``; 0 for a part that is 0."""
    size = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v / size.where(size > 0, torch.ones_like(size))


# The Shapley value of the feed-forward nonlinearity, by sampled permutations.
#
# The players of neuron z are the parts of its input, the bias's share among them, and the value of
# a coalition is ``v(S) = g(Σ_{j∈S} z_j)`` (``g(Σ a_j) · Σ u_j`` in a gated block). A player's
# share is its mean marginal contribution over random orders. In every single order the
# contributions add up to ``g(z) − g(0)``, so completeness is exact however few orders are drawn.
#
# All sources of a layer play together: its own tokens, those of another sequence, and the bias.


@dataclass
class ShapleyResult:
    """Norms behind the block with their standard errors, and the vectors of diagonal and bias."""

    norms: list[dict[str, Tensor]]  # of each group of sources, scope → (b, i, j)
    mixed: Tensor  # (b, i, d), Σ_{j≠i} of the parts just behind the block
    diagonal: Tensor  # (b, i, d)
    bias: Tensor  # (b, i, d)
    standard_error: list[dict[str, Tensor]]  # like `norms`, of each norm; NaN where there is none


def shapley_norms(
    jobs: Sequence[FeedForwardJob],
    parts: Parts,
    lengths: Sequence[int],
    samples: int,
    seed: int,
    memory_limit: int | None = None,
) -> ShapleyResult:
    """Norms of sampled Shapley parts; every target of a sequence has the same orders.

    There is a job for each group of sources.
    """
    b, n, _ = parts.own.shape
    empty = parts.own.new_zeros
    ff, scopes = jobs[0].ff, jobs[0].scopes
    d = ff.down.weight.shape[1]
    widths = [job.factors.weights.shape[1] for job in jobs]
    result = ShapleyResult(
        [{scope: empty(b, n, width) for scope in scopes} for width in widths],
        empty(b, n, d),
        empty(b, n, d),
        empty(b, n, d),
        [{scope: empty(b, n, width).fill_(torch.nan) for scope in scopes} for width in widths],
    )
    for index, length in enumerate(lengths):
        game = _Game(jobs, parts, index, length)
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(game.players, generator=generator) for _ in range(samples)]
        step = sampled_targets(game.shape, len(scopes), memory_limit)
        for i in range(0, length, step):
            _run_targets(game, slice(i, min(i + step, length)), orders, result)
    return result


class _Game:
    """The players of one sequence: its n tokens, those of other sequences, and the bias, last."""

    def __init__(self, jobs: Sequence[FeedForwardJob], parts: Parts, index: int, n: int):
        self.jobs, self.parts, self.index, self.n = jobs, parts, index, n
        self.ff = jobs[0].ff
        self.groups: list[slice] = []  # the players of each job
        end = n
        for job in jobs:
            if job.factors.source is None:
                self.groups.append(slice(0, n))
            else:
                count = job.sources(index, n)
                self.groups.append(slice(end, end + count))
                end += count
        self.players = end + 1

    @property
    def shape(self) -> Shape:
        """The sizes that the memory of one target depends on."""
        others = self.players - 1 - self.n
        job = max(self.jobs, key=lambda job: job.factors.source is not None)
        return job.shape(self.n, others)

    def shares(self, targets: slice) -> list[Tensor]:
        """The players' shares of each input projection, (players, i, m)."""
        ff, parts, index = self.ff, self.parts, self.index
        rows = torch.arange(targets.start, targets.stop)
        biases = [ff.up.bias] if ff.gate is None else [ff.gate.bias, ff.up.bias]
        weights = [
            job.factors.weights[index, : group.stop - group.start, targets]
            * job.factors.scale[index, targets, None]
            for job, group in zip(self.jobs, self.groups, strict=True)
        ]
        players = []
        for w, bias in zip(projections(ff), biases, strict=True):
            z = w.new_zeros(self.players, len(rows), w.shape[1])
            for job, group, alpha in zip(self.jobs, self.groups, weights, strict=True):
                values = job.factors.values[index, : group.stop - group.start]
                torch.bmm(alpha, values @ w, out=z[group])
            z[rows, rows - targets.start] = parts.own[index, targets] @ w
            z[-1] = parts.bias.vectors[index, targets] @ w
            if bias is not None:
                z[-1] += bias
            players.append(z)
        return players


def _coalition_value(ff: FeedForward, sums: list[Tensor]) -> Tensor:
    """``g(Σ z)``, or ``g(Σ a) · Σ u`` in a gated block."""
    g = activation(ff.activation).value
    return g(sums[0]) if ff.gate is None else g(sums[0]) * sums[1]


def _contributions(ff: FeedForward, players: list[Tensor], order: Tensor) -> Tensor:
    """What each player adds to the hidden vector as they join in `order`, (players, i, m)."""
    values = _coalition_value(ff, [z[order].cumsum(0) for z in players])
    values[1:] -= values[:-1].clone()
    values[:1] -= _empty_coalition(ff, players)
    contributions = torch.empty_like(values)
    contributions[order] = values
    return contributions


def _empty_coalition(ff: FeedForward, players: list[Tensor]) -> Tensor:
    """The hidden vector without any player, (1, i, m)."""
    return _coalition_value(ff, [torch.zeros_like(z[:1]) for z in players])


def _run_targets(game: _Game, targets: slice, orders: list[Tensor], result: ShapleyResult) -> None:
    ff, index = game.ff, game.index
    players = game.shares(targets)
    mean = torch.zeros_like(players[0])  # (players, i, m)
    for order in orders:
        mean += _contributions(ff, players, order)
    mean /= len(orders)
    shares = mean @ ff.down.weight  # (players, i, d)

    rows = torch.arange(targets.start, targets.stop)
    result.diagonal[index, targets] = shares[rows, rows - targets.start]
    bias = shares[-1] + _empty_coalition(ff, players)[0] @ ff.down.weight
    result.bias[index, targets] = bias if ff.down.bias is None else bias + ff.down.bias
    result.mixed[index, targets] = shares[:-1].sum(0) - result.diagonal[index, targets]

    if len(orders) > 1:  # a single order has no spread
        spreads = [
            NormSpread(job, index, targets, mean[group], shares[group])
            for job, group in zip(game.jobs, game.groups, strict=True)
        ]
        for order in orders:
            joined = _contributions(ff, players, order)
            for spread, group in zip(spreads, game.groups, strict=True):
                spread.add(joined[group])
        for spread, errors in zip(spreads, result.standard_error, strict=True):
            for scope, error in spread.standard_error(len(orders)):
                errors[scope][index, targets, : error.shape[-1]] = error
    for job, group, norms in zip(game.jobs, game.groups, result.norms, strict=True):
        sources = slice(0, group.stop - group.start)
        for scope, sizes in scope_norms(job, index, targets, sources, shares[group]):
            norms[scope][index, targets, sources] = sizes.transpose(0, 1)
