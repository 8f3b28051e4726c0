"""Norm maps of a frozen layer: ‖F_i(x_j)‖ behind every component."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normlens.frozen.attention import FrozenAttention, output_basis
from normlens.frozen.head_products import KeptProducts
from normlens.frozen.layer import FrozenLayer, freeze
from normlens.frozen.network import norms_by_source
from normlens.frozen.norm import FrozenNorm, FrozenResidual
from normlens.frozen.parts import Factors, Parts, State, largest_errors, relative_rows, side_by_side
from normlens.frozen.stage import StageResult, factored_norms, feed_forward_stage
from normlens.frozen.tiles import (
    ORDINARY,
    AddBypass,
    Buffers,
    FeedForwardBlock,
    Normalise,
    StageJob,
    TailStep,
)
from normlens.gpu.matmul import by_head
from normlens.gpu.sizes import takes_one_pass
from normlens.layers import Attention, Layer
from normlens.options import Settings

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


def scope_sizes(
    parts: Parts, real: Tensor | None, lengths: Sequence[int]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Norms of own parts and of the others' sums, and the errors against `real`, (b, i) each.

    None of the others where no tokens are mixed yet, and of the errors where nothing was traced.
    """
    if parts.mixed is not None and takes_one_pass(parts.own):
        from normlens.gpu.rows import measured  # Triton is slow to import

        return measured(parts, real, lengths)
    return (
        torch.linalg.vector_norm(parts.own, dim=-1),
        None if parts.mixed is None else torch.linalg.vector_norm(parts.mixed, dim=-1),
        None if real is None else relative_rows(parts.total, real, lengths),
    )


# Maps of an attention alone: of its weights, and of single heads.


def add_weight_maps(result: LayerMaps, attention: FrozenAttention, scopes: Collection[str]) -> None:
    """Add the maps of weights alone that are in `scopes`.

    ATTN-W and CROSS-W are ``mean_h α``, ATTNRES-W is ``½α + ½I`` (Abnar & Zuidema 2020).
    """
    described = attention.attention
    mean = attention.alpha.mean(1)  # (b, i, j)
    maps = {f"{described.symbol}-W": mean}
    if described.source is None:
        eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        maps[f"{described.symbol}RES-W"] = 0.5 * mean + 0.5 * eye
    for scope, weights in maps.items():
        if scope not in scopes:
            continue
        own = mean.new_zeros(mean.shape[:2])
        if described.source is None:  # no token of another sequence is the target itself
            own = weights.diagonal(dim1=1, dim2=2)
        # What a sink takes is no mixing with other tokens.
        total = weights.sum(-1) if described.sinks and described.source is None else 1
        result.norms[scope], result.own[scope], result.others[scope] = weights, own, total - own


def add_head_maps(result: LayerMaps, attention: FrozenAttention) -> None:
    """Add the maps of single heads, ``α^h_ij`` and ``α^h_ij ‖f^h(x_j)‖``, each (b, h, i, j).

    Kobayashi et al. 2020, eq. 6.
    """
    alpha, symbol = attention.alpha, attention.attention.symbol
    vectors = by_head(attention.values, output_basis(attention.attention))
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
    normed: dict[int, tuple[Factors, Tensor]] = field(default_factory=dict)  # of the last scope
    errors: dict[str, Tensor] = field(default_factory=dict)  # of completeness (b, i), by scope

    def run(self) -> LayerMaps:
        frozen, start = self.frozen, Parts(self.frozen.x)
        last = last_step(frozen.layer, self.scopes, self.settings)
        state = State(start, start=start)
        for index, step in enumerate(frozen.steps):
            if isinstance(step, FrozenAttention):
                add_weight_maps(self.result, step, self.scopes)
                if self.settings.heads:
                    add_head_maps(self.result, step)
            if index > last:
                continue
            if isinstance(step, FeedForwardBlock):
                if frozen.layer.by_source:
                    self._by_source(index, last)
                else:
                    self._behind_feed_forward(index, last, step, state)
                break
            step.pass_on(state, step.on_parts)
            if index in frozen.layer.scope_of_step:
                self._record(index, state.stream)
        largest = largest_errors(list(self.errors.values()))
        self.result.completeness |= zip(self.errors, largest, strict=True)
        return self.result

    def _by_source(self, index: int, last: int) -> None:
        """Record the block and every step behind it; of several blocks there are no statistics."""
        limit = self.settings.memory_limit
        for position, whole in norms_by_source(self.frozen, index, last, limit):
            bias, mixed = self.frozen.biases[position], whole.total - whole.own
            self._record(position, Parts(whole.own, bias, mixed), whole.norms)
        self.result.precision = str(self.frozen.x.dtype).removeprefix("torch.")

    def _behind_feed_forward(
        self, index: int, last: int, block: FeedForwardBlock, state: State[Parts]
    ) -> None:
        """Record the block and every step behind it; their parts exist only inside tiles."""
        parts, names = state.stream, self.frozen.layer.scope_of_step
        behind = range(index + 1, last + 1)
        stage = feed_forward_stage(
            block,
            parts,
            self.frozen.biases[index],
            [
                block.job(
                    StageJob(
                        names[index],
                        factors,
                        self._tail(behind, list(state.saved), factors),
                        self.buffers or Buffers(),
                        self.ordinary,
                        self.kept,
                        block.output,
                    )
                )
                for factors in parts.groups
            ],
            self.frozen.lengths,
            self.settings,
        )
        result, norms = self.result, stage.norms
        result.precision, result.kernel_error = stage.precision, stage.kernel_error
        result.sampled_error = stage.sampled_error
        for scope, error in stage.standard_error.items():
            if scope in self.scopes:
                result.standard_error[scope] = error
        self._record(index, stage.sums, norms[names[index]])
        if self.settings.statistics:
            has_residual = any(isinstance(self.frozen.steps[k], FrozenResidual) for k in behind)
            result.statistics = FeedForwardStatistics(
                output=block.output,
                input=parts.total,
                bypassed=state.saved[-1].total if has_residual else None,
                ordinary=self._ordinary_map(stage),
            )
        state = State(stage.sums, [replace(before, groups=()) for before in state.saved])
        for position in behind:
            step = self.frozen.steps[position]
            step.pass_on(state, step.on_parts)
            self._record(position, state.stream, norms[names[position]])

    def _tail(self, behind: range, saved: list[Parts], factors: Factors) -> tuple[TailStep, ...]:
        """The steps behind the block, for one group of sources."""
        tail: list[TailStep] = []
        for position in behind:
            step, scope = self.frozen.steps[position], self.frozen.layer.scope_of_step[position]
            if isinstance(step, FrozenNorm):
                tail.append(Normalise(scope, step))
            elif isinstance(step, FrozenResidual):
                added = saved.pop()
                same = [group for group in added.groups if group.source == factors.source]
                tail.append(AddBypass(scope, same[0] if same else None, added.own))
            else:
                raise ValueError(f"{step} cannot stand behind the feed-forward block")
        return tuple(tail)

    def _ordinary_map(self, stage: StageResult) -> Tensor | None:
        """The map just behind the block, of the ordinary dimensions alone."""
        if self.ordinary is None:
            return None
        own = torch.linalg.vector_norm(stage.sums.own[..., self.ordinary], dim=-1)
        return _with_diagonal(stage.norms[ORDINARY], own)

    def _record(self, index: int, parts: Parts, norms: Tensor | None = None) -> None:
        """Keep a scope's map, the norms that its mixing ratio compares, and its completeness."""
        scope = self.frozen.layer.scope_of_step[index]
        if scope not in self.scopes and index not in self.real:
            return
        own, others, errors = scope_sizes(parts, self.real.get(index), self.frozen.lengths)
        if errors is not None:
            self.errors[scope] = errors
        if scope not in self.scopes:
            return
        assert others is not None
        if norms is None:
            norms = self._factored_norms(parts.groups).clone()
        self.result.norms[scope] = _with_diagonal(norms, own)
        self.result.own[scope], self.result.others[scope] = own, others

    def _factored_norms(self, groups: tuple[Factors, ...]) -> Tensor:
        """Norms of factored parts, taken once for all scopes in which the factors are the same."""
        before, self.normed = self.normed, {}
        for group in groups:
            known = before.get(id(group))
            norms = factored_norms(group, self.frozen.lengths) if known is None else known[1]
            self.normed[id(group)] = group, norms  # which is held, so that its id stays its own
        return side_by_side([norms for _, norms in self.normed.values()], groups)


def _with_diagonal(norms: Tensor, own: Tensor) -> Tensor:
    """Write the norms of the targets' own parts on the diagonal of the map's last columns."""
    norms[..., -own.shape[-1] :].diagonal(dim1=1, dim2=2).copy_(own)
    return norms
