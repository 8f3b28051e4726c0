"""Norm maps of a frozen layer: ‖F_i(x_j)‖ behind every component.

Parts are walked through the layer's components, each of which keeps

    y_i = Σ_j F_i(x_j) + b_i                                             (completeness)

true, and that is compared with what the model itself computed wherever it was traced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from normlens.components import Attention, Layer
from normlens.decomposition.attention import FrozenAttention
from normlens.decomposition.buffers import Buffers
from normlens.decomposition.completeness import relative_error
from normlens.decomposition.engine import factored_norms
from normlens.decomposition.feedforward import (
    FrozenFeedForward,
    FrozenParallelFeedForward,
    SampledFeedForward,
)
from normlens.decomposition.feedforward_stage import Behind, feed_forward_stage
from normlens.decomposition.frozen import FrozenLayer, freeze
from normlens.decomposition.norm import FrozenNorm
from normlens.decomposition.parts import Factors, Parts, side_by_side
from normlens.decomposition.projections import KeptProducts
from normlens.decomposition.residual import FrozenBranch, FrozenResidual
from normlens.decomposition.settings import Settings
from normlens.decomposition.tiles import ORDINARY


@dataclass
class LayerMaps:
    """The maps of one layer for a batch; rows and columns beyond a sequence's length are void.

    Columns are the layer's own tokens, behind those of any other sequence that it reads.
    """

    norms: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, i, j)
    own: dict[str, Tensor] = field(default_factory=dict)  # scope → ‖F_i(x_i)‖ (b, i)
    others: dict[str, Tensor] = field(default_factory=dict)  # scope → ‖Σ_{j≠i} F_i(x_j)‖ (b, i)
    head_maps: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, h, i, j)
    standard_error: dict[str, Tensor] = field(default_factory=dict)  # Shapley only
    completeness: dict[str, Tensor] = field(default_factory=dict)  # scope → worst relative error
    precision: str | None = None  # of the feed-forward products; None: there were none
    #: of parts whose sum was not formed from them: of that sum, and of a sample of their norms
    kernel_error: Tensor | None = None
    sampled_error: Tensor | None = None
    statistics: FeedForwardStatistics | None = None


@dataclass(frozen=True)
class FeedForwardStatistics:
    """The block's vectors beside what bypasses it (Kobayashi et al. 2024, section 6)."""

    output: Tensor  # (b, i, d) the block's real output
    input: Tensor  # (b, i, d) its real input
    bypassed: Tensor | None = None  # (b, i, d) the vector that the residual adds to it
    ordinary: Tensor | None = None  # (b, i, j) the map behind the block of some dimensions only


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
) -> LayerMaps:
    """Freeze one layer and take its maps, as far as the requested scopes need it.

    `x` (b, j, d) is the layer's input and `alpha` (b, h, i, j) its attention weights; they and
    `sources` as in `freeze`, the rest as in `layer_maps`.
    """
    until = max(last_step(layer, scopes, settings), _last_attention(layer, scopes, settings))
    frozen = freeze(layer, x, alpha, lengths, settings.rule, sources, until)
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
    """Norms, the norms behind mixing ratios, and completeness of the requested scopes.

    `real` is the vector (b, i, d) that the model itself computed behind a step, by the step's
    index; `kept` are products of this layer's weights, and `buffers` the memory that layers share
    for their tiles; `ordinary` are dimensions of the feed-forward block's output that one more map,
    of the statistics, keeps.
    """
    walk = _Walk(frozen, set(scopes), settings, real or {}, kept, buffers, ordinary)
    return walk.run()


def last_step(layer: Layer, scopes: Collection[str], settings: Settings) -> int:
    """The last step whose parts somebody asked for; statistics need them all."""
    if settings.statistics:
        return len(layer.steps) - 1
    return max((i for i, name in layer.scope_of_step.items() if name in scopes), default=-1)


def _last_attention(layer: Layer, scopes: Collection[str], settings: Settings) -> int:
    """The last attention, if maps of weights or of single heads are asked for."""
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
    normed: list[tuple[Factors, Tensor]] = field(default_factory=list)  # norms asked for last

    @cached_property
    def last(self) -> int:
        return last_step(self.frozen.layer, self.scopes, self.settings)

    def run(self) -> LayerMaps:
        parts = Parts.of_tokens(self.frozen.x)
        saved: list[Parts] = []
        for index, step in enumerate(self.frozen.steps):
            if isinstance(step, FrozenAttention):
                self._attention_maps(step)
            if index > self.last:
                continue
            if isinstance(step, FrozenBranch):
                saved.append(parts)
            elif isinstance(step, (FrozenFeedForward, SampledFeedForward)):
                self._behind_feed_forward(index, step, parts, saved)
                break
            else:
                parts = _pass(step, parts, saved)
                if index in self.frozen.layer.scope_of_step:
                    self._record(index, parts)
        return self.result

    # Behind the feed-forward block ---------------------------------------------------------------

    def _behind_feed_forward(
        self,
        index: int,
        block: FrozenFeedForward | SampledFeedForward,
        parts: Parts,
        saved: list[Parts],
    ) -> None:
        """The block itself and every step behind it, whose parts exist only inside tiles."""
        names = self.frozen.layer.scope_of_step
        tail: list[Behind] = []
        for position in range(index + 1, self.last + 1):
            step = self.frozen.steps[position]
            if isinstance(step, FrozenResidual):
                tail.append(Behind(position, names[position], step, saved.pop()))
            elif isinstance(step, FrozenNorm):
                tail.append(Behind(position, names[position], step))
            else:
                raise ValueError(f"{step} cannot stand behind the feed-forward block")
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
        for position, scope, step, before in tail:
            sums = [] if before is None else [replace(before, groups=())]
            behind = _pass(step, behind, sums)
            self._record(position, behind, norms[scope])

    def _ordinary_map(self, behind: Parts, norms: dict[str, Tensor]) -> Tensor | None:
        """The map just behind the block of the ordinary dimensions alone."""
        if self.ordinary is None:
            return None
        own = torch.linalg.vector_norm(behind.own[..., self.ordinary], dim=-1)
        return _with_diagonal(norms[ORDINARY], own)

    # What is kept --------------------------------------------------------------------------------

    def _record(self, index: int, parts: Parts, norms: Tensor | None = None) -> None:
        """Keep a scope's map, the norms that its mixing ratio compares, and its completeness."""
        scope = self.frozen.layer.scope_of_step[index]
        if index in self.real:
            self.result.completeness[scope] = relative_error(
                parts.total, self.real[index], self.frozen.lengths
            )
        if scope not in self.scopes:
            return
        assert parts.mixed is not None
        own = torch.linalg.vector_norm(parts.own, dim=-1)  # (b, i)
        if norms is None:
            norms = self._factored_norms(parts.groups).clone()
        self.result.norms[scope] = _with_diagonal(norms, own)
        self.result.own[scope] = own
        self.result.others[scope] = torch.linalg.vector_norm(parts.mixed, dim=-1)

    def _factored_norms(self, groups: tuple[Factors, ...]) -> Tensor:
        """Norms of factored parts; a residual leaves them as they are."""
        known = {id(factors): norms for factors, norms in self.normed}
        self.normed = [
            (factors, known[id(factors)] if id(factors) in known else self._norms(factors))
            for factors in groups
        ]
        return side_by_side([norms for _, norms in self.normed], groups)

    def _norms(self, factors: Factors) -> Tensor:
        return factored_norms(factors, self.frozen.lengths)

    def _attention_maps(self, attention: FrozenAttention) -> None:
        """The maps of weights alone, and those of single heads."""
        alpha, symbol = attention.alpha, attention.attention.symbol
        mean = alpha.mean(1)  # (b, i, j)
        self._weight_map(f"{symbol}-W", mean)
        if attention.attention.source is None:
            # ATTNRES-W = ½α + ½I (Abnar & Zuidema 2020)
            eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
            self._weight_map(f"{symbol}RES-W", 0.5 * mean + 0.5 * eye)
        if self.settings.heads:
            # α^h_ij ‖f^h(x_j)‖ (Kobayashi et al. 2020, eq. 6)
            sizes = attention.head_norms()  # (b, j, h)
            self.result.head_maps[f"{symbol}-W"] = alpha
            self.result.head_maps[f"{symbol}-N"] = alpha * sizes.transpose(1, 2)[:, :, None, :]

    def _weight_map(self, scope: str, weights: Tensor) -> None:
        if scope in self.scopes:
            own = weights.diagonal(dim1=1, dim2=2)
            self.result.norms[scope] = weights
            self.result.own[scope], self.result.others[scope] = own, 1 - own


def _pass(
    step: FrozenNorm | FrozenAttention | FrozenParallelFeedForward | FrozenResidual,
    parts: Parts,
    saved: list[Parts],
) -> Parts:
    """What a component makes of the parts; a residual takes the last that were saved."""
    if isinstance(step, FrozenResidual):
        return step.on_parts(parts, saved.pop())
    return step.on_parts(parts)


def _with_diagonal(norms: Tensor, own: Tensor) -> Tensor:
    """The same map with the targets' own parts on the diagonal of its last columns."""
    norms[..., -own.shape[-1] :].diagonal(dim1=1, dim2=2).copy_(own)
    return norms
