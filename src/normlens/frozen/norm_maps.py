"""Norm maps of a frozen layer: ‖F_i(x_j)‖ behind every component."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normlens.frozen.attention import FrozenAttention, output_basis
from normlens.frozen.feedforward import FrozenFeedForward, SampledFeedForward
from normlens.frozen.head_products import KeptProducts
from normlens.frozen.layer import FrozenLayer, freeze
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
from normlens.frozen.shapley import shapley_norms
from normlens.frozen.stage import norms_by_kernel, stage_by_kernels, tail_of
from normlens.frozen.tiles import ORDINARY, Buffers, FeedForwardBlock, Job, feed_forward_norms
from normlens.gpu.matmul import by_head
from normlens.gpu.sizes import kernels_run_on
from normlens.layers import Layer
from normlens.options import AnalysisOptions

# The maps of one layer, as its decomposition returns them.


@dataclass
class LayerMaps:
    """The maps of one layer for a batch; rows and columns beyond a sequence's length are undefined.

    Columns are the tokens of any other sequence that the layer reads, and then the layer's tokens.
    """

    norms: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, i, j)
    own: dict[str, Tensor] = field(default_factory=dict)  # scope → ‖F_i(x_i)‖ (b, i)
    others: dict[str, Tensor] = field(default_factory=dict)  # scope → ‖Σ_{j≠i} F_i(x_j)‖ (b, i)
    head_maps: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, h, i, j)
    standard_error: dict[str, Tensor] = field(default_factory=dict)  # Shapley only
    completeness: dict[str, Tensor] = field(default_factory=dict)  # scope → worst relative error
    precision: str | None = None  # of the feed-forward products; None: there were none
    #: errors of the kernels' parts: of their sum, and of a sample of their norms
    kernel_error: Tensor | None = None
    sampled_error: Tensor | None = None
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
        result.norms[scope], result.own[scope], result.others[scope] = weights, own, total - own
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


def decompose_layer(
    layer: Layer,
    x: Tensor,
    alpha: Tensor | Sequence[Tensor],
    lengths: Sequence[int],
    scopes: Sequence[str],
    options: AnalysisOptions = AnalysisOptions(),
    real: Mapping[int, Tensor] | None = None,
    kept: KeptProducts | None = None,
    buffers: Buffers | None = None,
    ordinary: Tensor | None = None,
    sources: Mapping[str, Tensor] | None = None,
    source_lengths: Mapping[str, Sequence[int]] | None = None,
    sample_kernels: bool = True,
) -> LayerMaps:
    """Freeze one layer and return its maps, as far as the requested scopes need it.

    `x` (b, j, d) is the layer's input and `alpha` (b, h, i, j) its attention weights; they,
    `sources` and `source_lengths` as in `freeze`, the rest as in `layer_maps`.
    """
    until = last_step(layer, scopes, options)
    if options.heads or not set(scopes) <= set(layer.scope_of_step.values()):
        until = max(until, layer.steps.index(layer.attentions[-1]))  # maps of its weights alone
    given = layer, x, alpha, lengths, options.nonlinearity, sources, until
    frozen = freeze(*given, source_lengths=source_lengths)
    return layer_maps(frozen, scopes, options, real, kept, buffers, ordinary, sample_kernels)


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
    return walk.result


def last_step(layer: Layer, scopes: Collection[str], options: AnalysisOptions) -> int:
    """The last step whose parts a requested scope needs; statistics need all steps."""
    if options.statistics:
        return len(layer.steps) - 1
    return max((i for i, name in layer.scope_of_step.items() if name in scopes), default=-1)


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
        jobs = [Job(block, factors, *given) for factors in groups]
        sums, norms = self.norms_behind(jobs, state.stream, self.frozen.biases[index])
        self.record(index, sums, norms[names[index]])
        if self.options.statistics:
            is_bypassed = any(isinstance(step, Parts) for step in tail.values())
            bypassed = state.saved[-1].total if is_bypassed else None
            ordinary: Tensor | None = None
            if self.ordinary is not None:  # the map just behind the block, of these dimensions
                sizes = torch.linalg.vector_norm(sums.own[..., self.ordinary], dim=-1)
                ordinary = _with_diagonal(norms[ORDINARY], sizes)
            self.result.statistics = FeedForwardStatistics(
                block.output, state.stream.total, bypassed, ordinary
            )
        state = State(sums, [replace(before, groups=()) for before in state.saved])
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
        sums, found = Parts(own, bias), []
        for job in jobs:
            if on_kernels and tail_of(job) is not None:
                pairs = stage_by_kernels(job, lengths, options, self.sample_kernels)
            else:
                pairs = feed_forward_norms(job, lengths, options.limit)
            sums = replace(sums, mixed=plus(pairs.mixed, sums.mixed))
            found.append(pairs.norms)
            result.precision = pairs.precision
            result.kernel_error = _larger(result.kernel_error, pairs.error)
            result.sampled_error = _larger(result.sampled_error, pairs.sampled_error)
        scopes = jobs[0].scopes
        return sums, {s: side_by_side([maps[s] for maps in found], parts.groups) for s in scopes}

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
        self.result.norms[scope] = _with_diagonal(norms, own)
        self.result.own[scope], self.result.others[scope] = own, others


def _with_diagonal(norms: Tensor, own: Tensor) -> Tensor:
    """Write the norms of the targets' own parts on the diagonal of the map's last columns."""
    norms[..., -own.shape[-1] :].diagonal(dim1=1, dim2=2).copy_(own)
    return norms


def _larger(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The larger of two errors, NaN above all; None if nothing was compared."""
    return b if a is None else a if b is None else torch.maximum(a, b)
