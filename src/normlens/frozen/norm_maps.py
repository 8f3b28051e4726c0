"""Norm maps of a frozen layer: ‖F_i(x_j)‖ behind every component."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from normlens.frozen.attention import FrozenAttention
from normlens.frozen.experts import FrozenExperts
from normlens.frozen.feedforward import FrozenFeedForward, SampledFeedForward
from normlens.frozen.head_products import KeptProducts
from normlens.frozen.layer import FrozenLayer, freeze
from normlens.frozen.network import norms_by_source
from normlens.frozen.norm import FrozenNorm, FrozenResidual
from normlens.frozen.parts import Factors, Parts, side_by_side
from normlens.frozen.stage import Behind, factored_norms, feed_forward_stage
from normlens.frozen.step import State
from normlens.frozen.tiles import ORDINARY, Buffers
from normlens.layers import Attention, Layer
from normlens.options import Settings
from normlens.plan.memory import largest_errors, relative_rows, takes_one_pass

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


# What is measured of the vectors at a scope: norms for its mixing ratio, and its completeness.


class ScopeSizes(NamedTuple):
    """Numbers of each target, (b, i)."""

    own: Tensor  # ‖F_i(x_i)‖
    others: Tensor | None  # ‖Σ_{j≠i} F_i(x_j)‖; None: no tokens are mixed yet
    errors: Tensor | None  # ‖Σ_j F_i(x_j) + b_i − y_i‖ / ‖y_i‖; None: y was not traced


def scope_sizes(parts: Parts, real: Tensor | None, lengths: Sequence[int]) -> ScopeSizes:
    """The sizes of parts, of which the model has computed `real` (b, i, d)."""
    if parts.mixed is not None and takes_one_pass(parts.own):
        from normlens.gpu.operands import measured  # Triton is slow to import

        return ScopeSizes(*measured(parts, real, lengths))
    return ScopeSizes(
        torch.linalg.vector_norm(parts.own, dim=-1),
        None if parts.mixed is None else torch.linalg.vector_norm(parts.mixed, dim=-1),
        None if real is None else relative_rows(parts.total, real, lengths),
    )


# Maps of an attention alone: of its weights, and of single heads.


def add_weight_maps(result: LayerMaps, attention: FrozenAttention, scopes: Collection[str]) -> None:
    """Add the maps of weights alone that are in `scopes`.

    ATTN-W and CROSS-W are ``mean_h α``, ATTNRES-W is ``½α + ½I`` (Abnar & Zuidema 2020).
    """
    symbol = attention.attention.symbol
    mean = attention.alpha.mean(1)  # (b, i, j)
    if attention.attention.source is not None:
        # No token of another sequence is the target itself.
        _add(result, f"{symbol}-W", mean, mean.new_zeros(mean.shape[:2]), scopes)
        return
    eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    for scope, weights in ((f"{symbol}-W", mean), (f"{symbol}RES-W", 0.5 * mean + 0.5 * eye)):
        own = weights.diagonal(dim1=1, dim2=2)
        # What a sink takes is no mixing with other tokens.
        others = weights.sum(-1) - own if attention.attention.sinks else None
        _add(result, scope, weights, own, scopes, others)


def _add(
    result: LayerMaps,
    scope: str,
    weights: Tensor,
    own: Tensor,
    scopes: Collection[str],
    others: Tensor | None = None,
) -> None:
    if scope in scopes:
        result.norms[scope] = weights
        result.own[scope], result.others[scope] = own, 1 - own if others is None else others


def add_head_maps(result: LayerMaps, attention: FrozenAttention) -> None:
    """Add the maps of single heads, ``α^h_ij`` and ``α^h_ij ‖f^h(x_j)‖``, each (b, h, i, j).

    Kobayashi et al. 2020, eq. 6.
    """
    alpha, symbol = attention.alpha, attention.attention.symbol
    sizes = attention.head_norms()  # (b, j, h)
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
    settings: Settings = Settings(),
    real: Mapping[int, Tensor] | None = None,
    kept: KeptProducts | None = None,
    buffers: Buffers | None = None,
    ordinary: Tensor | None = None,
    sources: Mapping[str, Tensor] | None = None,
    source_lengths: Mapping[str, Sequence[int]] | None = None,
) -> LayerMaps:
    """Freeze one layer and return its maps, as far as the requested scopes need it.

    `x` (b, j, d) is the layer's input and `alpha` (b, h, i, j) its attention weights; they,
    `sources` and `source_lengths` as in `freeze`, the rest as in `layer_maps`.
    """
    until = max(last_step(layer, scopes, settings), _last_attention(layer, scopes, settings))
    frozen = freeze(
        layer,
        x,
        alpha,
        lengths,
        settings.rule,
        sources,
        until,
        source_lengths=source_lengths,
    )
    return layer_maps(frozen, scopes, settings, real, kept, buffers, ordinary)


def layer_maps(
    frozen: FrozenLayer,
    scopes: Sequence[str],
    settings: Settings = Settings(),
    real: Mapping[int, Tensor] | None = None,
    kept: KeptProducts | None = None,
    buffers: Buffers | None = None,
    ordinary: Tensor | None = None,
) -> LayerMaps:
    """The maps of the requested scopes, the norms of their mixing ratios, and their completeness.

    `real` holds the vectors (b, i, d) that the model itself computed behind a step, by the step's
    index; `kept` are products of this layer's weights, and `buffers` the memory that layers share
    for their tiles; `ordinary` are the dimensions of the feed-forward block's output in one more
    map, which belongs to the statistics.
    """
    walk = _Walk(frozen, set(scopes), settings, real or {}, kept, buffers, ordinary)
    return walk.run()


def last_step(layer: Layer, scopes: Collection[str], settings: Settings) -> int:
    """The last step whose parts a requested scope needs; statistics need all steps."""
    if settings.statistics:
        return len(layer.steps) - 1
    return max((i for i, name in layer.scope_of_step.items() if name in scopes), default=-1)


def _last_attention(layer: Layer, scopes: Collection[str], settings: Settings) -> int:
    """The last attention, if maps of weights or of single heads are requested; else −1."""
    if not settings.heads and set(scopes) <= set(layer.scope_of_step.values()):
        return -1
    return max(i for i, step in enumerate(layer.steps) if isinstance(step, Attention))


@dataclass
class _Walk:
    """The state of one pass over a frozen layer's steps."""

    frozen: FrozenLayer
    scopes: set[str]
    settings: Settings
    real: Mapping[int, Tensor]
    kept: KeptProducts | None
    buffers: Buffers | None
    ordinary: Tensor | None
    result: LayerMaps = field(default_factory=LayerMaps)
    normed: list[tuple[Factors, Tensor]] = field(default_factory=list)  # of the last scope
    errors: dict[str, Tensor] = field(default_factory=dict)  # of completeness (b, i), by scope

    @cached_property
    def last(self) -> int:
        return last_step(self.frozen.layer, self.scopes, self.settings)

    def run(self) -> LayerMaps:
        state = State.at_input(Parts.of_tokens(self.frozen.x))
        for index, step in enumerate(self.frozen.steps):
            if isinstance(step, FrozenAttention):
                add_weight_maps(self.result, step, self.scopes)
                if self.settings.heads:
                    add_head_maps(self.result, step)
            if index > self.last:
                continue
            if isinstance(step, (FrozenFeedForward, FrozenExperts, SampledFeedForward)):
                if self.frozen.layer.by_source:
                    self._by_source(index)
                else:
                    self._behind_feed_forward(index, step, state)
                break
            step.pass_on(state, step.on_parts)
            if index in self.frozen.layer.scope_of_step:
                self._record(index, state.stream)
        largest = largest_errors(list(self.errors.values()))
        self.result.completeness |= zip(self.errors, largest, strict=True)
        return self.result

    # Behind the feed-forward block ---------------------------------------------------------------

    def _by_source(self, index: int) -> None:
        """Record the block and every step behind it; of several blocks there are no statistics."""
        limit = self.settings.memory_limit
        for position, parts, norms in norms_by_source(self.frozen, index, self.last, limit):
            self._record(position, parts, norms)
        self.result.precision = str(self.frozen.x.dtype).removeprefix("torch.")

    def _behind_feed_forward(
        self,
        index: int,
        block: FrozenFeedForward | FrozenExperts | SampledFeedForward,
        state: State[Parts],
    ) -> None:
        """Record the block and every step behind it; their parts exist only inside tiles."""
        parts, saved = state.stream, list(state.saved)
        names = self.frozen.layer.scope_of_step
        tail: list[Behind] = []
        for position in range(index + 1, self.last + 1):
            step = self.frozen.steps[position]
            if not isinstance(step, (FrozenResidual, FrozenNorm)):
                raise ValueError(f"{step} cannot stand behind the feed-forward block")
            added = saved.pop() if isinstance(step, FrozenResidual) else None
            tail.append(Behind(position, names[position], step, added))
        bypass = next((step.saved for step in tail if step.saved is not None), None)
        stage = feed_forward_stage(
            block,
            parts,
            names[index],
            tail,
            self.frozen.lengths,
            self.settings,
            self.kept,
            self.buffers,
            self.ordinary,
        )
        behind, norms = stage.sums, stage.norms
        self.result.precision = stage.precision
        self.result.kernel_error = stage.kernel_error
        self.result.sampled_error = stage.sampled_error
        self.result.standard_error = {
            name: error for name, error in stage.standard_error.items() if name in self.scopes
        }
        self._record(index, behind, norms[names[index]])
        if self.settings.statistics:
            self.result.statistics = FeedForwardStatistics(
                output=block.output,
                input=parts.total,
                bypassed=None if bypass is None else bypass.total,
                ordinary=self._ordinary_map(behind, norms),
            )
        state = State(behind, [replace(before, groups=()) for before in state.saved])
        for position, scope, step, _ in tail:
            step.pass_on(state, step.on_parts)
            self._record(position, state.stream, norms[scope])

    def _ordinary_map(self, behind: Parts, norms: dict[str, Tensor]) -> Tensor | None:
        """The map just behind the block, of the ordinary dimensions alone."""
        if self.ordinary is None:
            return None
        own = torch.linalg.vector_norm(behind.own[..., self.ordinary], dim=-1)
        return _with_diagonal(norms[ORDINARY], own)

    # Records --------------------------------------------------------------------------------------

    def _record(self, index: int, parts: Parts, norms: Tensor | None = None) -> None:
        """Keep a scope's map, the norms that its mixing ratio compares, and its completeness."""
        scope = self.frozen.layer.scope_of_step[index]
        if scope not in self.scopes and index not in self.real:
            return
        sizes = scope_sizes(parts, self.real.get(index), self.frozen.lengths)
        if sizes.errors is not None:
            self.errors[scope] = sizes.errors
        if scope not in self.scopes:
            return
        assert sizes.others is not None
        if norms is None:
            norms = self._factored_norms(parts.groups).clone()
        self.result.norms[scope] = _with_diagonal(norms, sizes.own)
        self.result.own[scope] = sizes.own
        self.result.others[scope] = sizes.others

    def _factored_norms(self, groups: tuple[Factors, ...]) -> Tensor:
        """Norms of factored parts, taken once for all scopes in which the factors are the same."""
        computed = {id(factors): norms for factors, norms in self.normed}
        self.normed = [
            (factors, computed[id(factors)] if id(factors) in computed else self._norms(factors))
            for factors in groups
        ]
        return side_by_side([norms for _, norms in self.normed], groups)

    def _norms(self, factors: Factors) -> Tensor:
        return factored_norms(factors, self.frozen.lengths)


def _with_diagonal(norms: Tensor, own: Tensor) -> Tensor:
    """Write the norms of the targets' own parts on the diagonal of the map's last columns."""
    norms[..., -own.shape[-1] :].diagonal(dim1=1, dim2=2).copy_(own)
    return norms
