"""Norm maps of a frozen layer: ‖F_i(x_j)‖ behind every component."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normlens.frozen.attention import FrozenAttention, output_basis
from normlens.frozen.feedforward import FrozenFeedForward, SampledFeedForward, nonlinearity
from normlens.frozen.head_products import KeptProducts
from normlens.frozen.layer import FrozenLayer
from normlens.frozen.network import norms_by_source
from normlens.frozen.parts import (
    Factors,
    FrozenNorm,
    FrozenResidual,
    Parts,
    State,
    largest_errors,
    plus,
    relative_rows,
    side_by_side,
    takes_one_pass,
)
from normlens.frozen.stage import norms_by_kernel, stage_by_kernels, tail_of
from normlens.frozen.tiles import (
    ORDINARY,
    Buffers,
    FeedForwardBlock,
    Job,
    feed_forward_norms,
    scope_norms,
)
from normlens.gpu.matmul import by_head
from normlens.gpu.sizes import kernels_run_on
from normlens.layers import FeedForward, Layer
from normlens.options import AnalysisOptions
from normlens.plan.costs import sampled_targets
from normlens.scopes import OWN_SCOPES

# The maps of one layer, as its decomposition returns them.


@dataclass
class LayerMaps:
    """The maps of one layer for a batch; rows and columns beyond a sequence's length are undefined.

    Columns are the tokens of any other sequence that the layer reads, and then the layer's tokens.
    """

    norms: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, i, j)
    #: scope → ‖Σ_{j≠i} F_i(x_j)‖ and ‖F_i(x_i)‖, (b, i)
    mixing: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    head_maps: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, h, i, j)
    standard_error: dict[str, Tensor] = field(default_factory=dict)  # Shapley only
    completeness: dict[str, Tensor] = field(default_factory=dict)  # scope → worst relative error
    precision: str | None = None  # of the feed-forward products; None: there were none
    kernel_errors: dict[str, Tensor] = field(default_factory=dict)  # as those of `PairNorms`
    statistics: FeedForwardStatistics | None = None


@dataclass(frozen=True)
class FeedForwardStatistics:
    """The block's vectors and the vector that bypasses it (Kobayashi et al. 2024, section 6)."""

    output: Tensor  # (b, i, d) the block's real output
    input: Tensor  # (b, i, d) its real input
    bypassed: Tensor | None = None  # (b, i, d) the vector that the residual adds to it
    ordinary: Tensor | None = None  # (b, i, j) the map behind the block without special dimensions


# Maps of an attention alone: of its weights, and of single heads.


def add_attention_maps(
    result: LayerMaps, attention: FrozenAttention, scopes: Collection[str], heads: bool
) -> None:
    """Add the maps of weights alone that are in `scopes`, and with `heads` those of single heads.

    ATTN-W and CROSS-W are ``mean_h α``, ATTNRES-W is ``½α + ½I`` (Abnar & Zuidema 2020). Maps of
    heads are ``α^h_ij`` and ``α^h_ij ‖f^h(x_j)‖``, (b, h, i, j) (Kobayashi et al. 2020, eq. 6).
    """
    described, alpha = attention.attention, attention.alpha.dense
    symbol, is_own = described.symbol, described.source is None
    mean = alpha.mean(1)  # (b, i, j)
    maps = {f"{symbol}-W": mean}
    if is_own:
        eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        maps[f"{symbol}RES-W"] = 0.5 * mean + 0.5 * eye
    for scope, weights in maps.items():
        if scope not in scopes:
            continue
        # No token of another sequence is the target itself.
        own = weights.diagonal(dim1=1, dim2=2) if is_own else mean.new_zeros(mean.shape[:2])
        # What a sink takes is no mixing with other tokens.
        total = weights.sum(-1) if described.sinks and is_own else 1
        result.norms[scope], result.mixing[scope] = weights, (total - own, own)
    if heads:
        vectors = by_head(attention.values, output_basis(described))
        sizes = torch.linalg.vector_norm(vectors, dim=-1)  # ‖f^h(x_j)‖ (b, j, h)
        result.head_maps[f"{symbol}-W"] = alpha
        result.head_maps[f"{symbol}-N"] = alpha * sizes.transpose(1, 2)[:, :, None, :]


# Norm maps of a frozen layer: ‖F_i(x_j)‖ behind every component.
#
# Parts pass through the layer's components, each of which keeps this equation true:
#
#     y_i = Σ_j F_i(x_j) + b_i                                             (completeness)
#
# The sum is compared with the model's own vectors wherever these were traced.


def layer_maps(
    frozen: FrozenLayer,
    scopes: Sequence[str],
    options: AnalysisOptions = AnalysisOptions(),
    real: Mapping[int, Tensor] | None = None,
    kept: KeptProducts | None = None,
    buffers: Buffers | None = None,
    ordinary: Tensor | None = None,
    sample_kernels: bool = True,
) -> LayerMaps:
    """The maps of the requested scopes, the norms of their mixing ratios, and their completeness.

    `real` holds the vectors (b, i, d) that the model itself computed behind a step, by the step's
    index; `kept` are products of this layer's weights, and `buffers` the memory that layers share
    for their tiles; `ordinary` are the dimensions of the feed-forward block's output in one more
    map, which belongs to the statistics. With `sample_kernels` a few of a kernel's norms are
    compared with an exact recomputation.
    """
    given = real or {}, kept, buffers or Buffers(), ordinary, sample_kernels
    walk = _Walk(frozen, set(scopes), options, *given)
    last, start = last_step(frozen.layer, scopes, options), Parts(frozen.x)
    state = State(start, start=start)
    for index, step in enumerate(frozen.steps):
        if isinstance(step, FrozenAttention):
            add_attention_maps(walk.result, step, walk.scopes, options.heads)
        if index > last:
            continue
        if isinstance(step, FeedForwardBlock):
            if frozen.layer.by_source:
                walk.by_source(index, last)
            else:
                walk.by_pairs(index, last, step, state)
            break
        step.pass_on(state, step.on_parts)
        if index in frozen.layer.scope_of_step:
            walk.record(index, state.stream)
    largest = largest_errors(list(walk.errors.values()))
    walk.result.completeness |= zip(walk.errors, largest, strict=True)
    for scope in scopes:
        if scope in OWN_SCOPES and frozen.layer.kept_steps(scope):
            walk.own_scope(scope)
    return walk.result


def last_step(layer: Layer, scopes: Collection[str], options: AnalysisOptions) -> int:
    """The last step whose parts a requested scope needs; statistics need all steps."""
    if options.statistics:
        return len(layer.steps) - 1
    last = -1
    for index, name in layer.scope_of_step.items():
        last = index if name in scopes else last
    return last


def last_frozen_step(layer: Layer, scopes: Collection[str], options: AnalysisOptions) -> int:
    """The last step that maps of these scopes need frozen, those of weights and heads included."""
    last = last_step(layer, scopes, options)
    if options.heads or not set(scopes) <= set(layer.scope_of_step.values()):
        last = max(last, layer.steps.index(layer.attentions[-1]))
        for scope in OWN_SCOPES.keys() & scopes:
            last = max(last, *layer.kept_steps(scope), -1)
    return last


def has_kernels(weight: Tensor) -> bool:
    """Whether kernels can work with this weight's device and dtype."""
    return weight.is_cuda and kernels_run_on(weight.device, weight.dtype)


@dataclass
class _Walk:
    """One pass over a frozen layer's steps, and what it has found so far."""

    frozen: FrozenLayer
    scopes: set[str]
    options: AnalysisOptions
    real: Mapping[int, Tensor]
    kept: KeptProducts | None
    buffers: Buffers
    ordinary: Tensor | None
    sample_kernels: bool
    result: LayerMaps = field(default_factory=LayerMaps)
    normed: dict[Factors, Tensor] = field(default_factory=dict)  # norms of the last scope's parts
    errors: dict[str, Tensor] = field(default_factory=dict)  # of completeness (b, i), by scope

    def by_source(self, index: int, last: int) -> None:
        """Record the block and every step behind it; of several blocks there are no statistics."""
        limit = self.options.limit
        for position, whole in norms_by_source(self.frozen, index, last, limit):
            bias, mixed = self.frozen.biases[position], whole.total - whole.own
            self.record(position, Parts(whole.own, bias, mixed), whole.norms)
        self.result.precision = str(self.frozen.x.dtype).removeprefix("torch.")

    def own_scope(self, scope: str) -> None:
        """Record a scope of a user's own: the whole way of a layer of the steps that it keeps."""
        kept, vectors = self.frozen.keeping(self.frozen.layer.kept_steps(scope))
        (*_, (last, name)) = kept.layer.scope_of_step.items()
        options = replace(self.options, heads=False, statistics=False)
        given = {last: vectors}, None, self.buffers, None, self.sample_kernels
        found, result = layer_maps(kept, [name], options, *given), self.result
        result.norms[scope], result.mixing[scope] = found.norms[name], found.mixing[name]
        result.completeness[scope] = found.completeness[name]
        result.precision = result.precision or found.precision
        self.note_kernels(found.kernel_errors)

    def note_kernels(self, errors: Mapping[str, Tensor]) -> None:
        """Keep the largest of each kind of error, NaN above all."""
        for kind, error in errors.items():
            before = self.result.kernel_errors.get(kind, error)
            self.result.kernel_errors[kind] = torch.maximum(before, error)

    def by_pairs(self, index: int, last: int, block: FeedForwardBlock, state: State[Parts]) -> None:
        """Record the block and every step behind it, up to `last`, by the norms of all pairs."""
        names, groups, saved = self.frozen.layer.scope_of_step, state.stream.groups, state.saved[:]
        tail: dict[str, FrozenNorm | Parts] = {}
        for position in range(index + 1, last + 1):
            step = self.frozen.steps[position]
            if isinstance(step, FrozenResidual):
                tail[names[position]] = saved.pop()
            elif isinstance(step, FrozenNorm):
                tail[names[position]] = step
            else:
                raise ValueError(f"{step} cannot stand behind the feed-forward block")
        # Products are kept of the first attention, and of all its parts' norms.
        kept = self.kept if len(groups) == 1 else None
        given = names[index], tail, self.buffers, self.ordinary, kept
        jobs = list[Job]()
        for factors in groups:
            jobs.append(Job(block, factors, *given))
        sums, norms = self.norms_behind(jobs, state.stream, self.frozen.biases[index])
        self.record(index, sums, norms[names[index]])
        if self.options.statistics:
            is_bypassed = any(isinstance(step, Parts) for step in tail.values())
            bypassed = state.saved[-1].total if is_bypassed else None
            ordinary: Tensor | None = None
            if self.ordinary is not None:  # the map just behind the block, of these dimensions
                sizes = torch.linalg.vector_norm(sums.own[..., self.ordinary], dim=-1)
                ordinary = norms[ORDINARY]
                ordinary[..., -sizes.shape[-1] :].diagonal(dim1=1, dim2=2).copy_(sizes)
            self.result.statistics = FeedForwardStatistics(
                block.output, state.stream.total, bypassed, ordinary
            )
        # Norms of what is left are there already; only sums pass on.
        for place, before in enumerate(state.saved):
            state.saved[place] = replace(before, groups=())
        state.stream = sums
        for position in range(index + 1, last + 1):
            step = self.frozen.steps[position]
            step.pass_on(state, step.on_parts)
            self.record(position, state.stream, norms[names[position]])

    def norms_behind(
        self, jobs: list[Job], parts: Parts, bias: Tensor | None
    ) -> tuple[Parts, dict[str, Tensor]]:
        """Sums of the parts just behind the block, and each scope's norms (b, i, j) from there on.

        There is a job for each group of sources; kernels do those that they support, tiles the
        others.
        """
        block, lengths, options = jobs[0].block, self.frozen.lengths, self.options
        result = self.result
        if isinstance(block, SampledFeedForward):
            sampled = shapley_norms(block.ff, jobs, parts, lengths, options)
            for scope, errors in sampled.standard_error.items():
                if scope in self.scopes:
                    result.standard_error[scope] = errors
            return sampled.sums, sampled.norms
        own = block.linear(parts.own)
        if len(jobs) == 1:
            mixed = block.output - own
            jobs = [replace(jobs[0], mixed=mixed if bias is None else mixed - bias)]
        on_kernels = isinstance(block, FrozenFeedForward) and has_kernels(block.ff.down.weight)
        sums, found = Parts(own, bias), defaultdict[str, list[Tensor]](list)
        for job in jobs:
            if on_kernels and tail_of(job) is not None:
                pairs = stage_by_kernels(job, lengths, options, self.sample_kernels)
            else:
                pairs = feed_forward_norms(job, lengths, options.limit)
            sums = replace(sums, mixed=plus(pairs.mixed, sums.mixed))
            for scope, of_group in pairs.norms.items():
                found[scope].append(of_group)
            result.precision = pairs.precision
            self.note_kernels(pairs.errors)
        norms = {}
        for scope, of_groups in found.items():
            norms[scope] = side_by_side(of_groups, parts.groups)
        return sums, norms

    def record(self, index: int, parts: Parts, norms: Tensor | None = None) -> None:
        """Keep a scope's map, the norms that its mixing ratio compares, and its completeness.

        `norms` of factored parts are taken here, once for all scopes with the same factors.
        """
        scope, real = self.frozen.layer.scope_of_step[index], self.real.get(index)
        if real is None and scope not in self.scopes:
            return
        assert parts.mixed is not None
        if takes_one_pass(parts.own):
            from normlens.gpu.rows import measured  # Triton is slow to import

            own, others, errors = measured(parts, real, self.frozen.lengths)
        else:
            own = torch.linalg.vector_norm(parts.own, dim=-1)
            others = torch.linalg.vector_norm(parts.mixed, dim=-1)
            errors = None if real is None else relative_rows(parts.total, real, self.frozen.lengths)
        if errors is not None:
            self.errors[scope] = errors
        if scope not in self.scopes:
            return
        if norms is None:
            before, self.normed = self.normed, {}
            for group in parts.groups:
                if group in before:
                    self.normed[group] = before[group]
                elif has_kernels(group.weights):
                    self.normed[group] = norms_by_kernel(group, self.frozen.lengths)
                else:
                    self.normed[group] = group.norms()
            norms = side_by_side(list(self.normed.values()), parts.groups).clone()
        norms[..., -own.shape[-1] :].diagonal(dim1=1, dim2=2).copy_(own)
        self.result.norms[scope] = norms
        self.result.mixing[scope] = others, own


# The Shapley value of the feed-forward nonlinearity, by sampled permutations.
#
# The players of neuron z are the parts of its input, the bias's share among them, and the value of
# a coalition is ``v(S) = g(Σ_{j∈S} z_j)`` (``g(Σ a_j) · Σ u_j`` in a gated block). A player's share
# is its mean marginal contribution over random orders. In every single order the contributions add
# up to ``g(z) − g(0)``, so completeness is exact however few orders are drawn.
#
# All sources of a layer play together: its own tokens, those of another sequence, and the bias.


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
