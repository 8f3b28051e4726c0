"""One layer from its input and attention weights to the norms at every scope.

The steps of the layer are walked in the model's order. Each maps parts to parts and keeps

    y_i = Σ_j F_i(x_j) + b_i                                             (completeness)

true, which is compared with what the model itself computed wherever that was traced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from normlens.components import (
    Attention,
    Branch,
    FeedForward,
    Layer,
    Norm,
    ParallelFeedForward,
    Residual,
    Step,
)
from normlens.decomposition.buffers import Buffers
from normlens.decomposition.engine import AUTO, factored_norms, run_feed_forward
from normlens.decomposition.feedforward import (
    ORDINARY,
    AddBypass,
    FeedForwardJob,
    Normalise,
    TailStep,
)
from normlens.decomposition.parts import (
    Factors,
    Vectors,
    attend,
    inverse_deviation,
    normalise_tokens,
)
from normlens.decomposition.projections import KeptProducts
from normlens.decomposition.rules import Linearised, hidden, linearise, projections
from normlens.decomposition.shapley import shapley_norms

SPECIAL_SHARE = 0.01


@dataclass(frozen=True)
class Settings:
    """What is asked of the algebra, apart from the scopes."""

    rule: str = "ig"
    heads: bool = False
    memory_limit: int | None = None
    statistics: bool = False
    samples: int = 64  # permutations of the Shapley rule
    seed: int = 0
    precision: str = AUTO  # of the feed-forward products on a GPU; `engine` names them


@dataclass
class LayerMaps:
    """The maps of one layer for a batch; rows and columns beyond a sequence's length are void."""

    norms: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, i, j)
    mixing: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, i)
    head_maps: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, h, i, j)
    standard_error: dict[str, Tensor] = field(default_factory=dict)  # Shapley only
    completeness: dict[str, Tensor] = field(default_factory=dict)  # scope → worst relative error
    precision: str | None = None  # of the feed-forward products; None: there were none
    kernel_error: Tensor | None = None  # of parts whose sum was not formed from them
    statistics: FeedForwardStatistics | None = None


@dataclass
class FeedForwardStatistics:
    """The block's vectors beside what bypasses it (Kobayashi et al. 2024, section 6).

    Special dimensions are the 1 % with the lowest γ in the norm behind the block.
    """

    output: Tensor  # (b, i, d) the block's real output
    input: Tensor  # (b, i, d) its real input
    bypassed: Tensor | None = None  # (b, i, d) the vector that the residual adds to it
    gamma: Tensor | None = None  # (d,) of the norm behind the block
    special: Tensor | None = None  # (k,) special dimensions
    ordinary: Tensor | None = None  # (b, i, j) the map behind the block without them


def decompose_layer(
    layer: Layer,
    x: Tensor,
    alpha: Tensor,
    lengths: Sequence[int],
    scopes: Sequence[str],
    settings: Settings = Settings(),
    real: Mapping[int, Tensor] | None = None,
    kept: KeptProducts | None = None,
    buffers: Buffers | None = None,
) -> LayerMaps:
    """Norms, mixing ratios and completeness of the requested scopes of one layer.

    `x` (b, j, d) is the layer's input, `alpha` (b, h, i, j) its attention weights, `real` the
    vector (b, i, d) that the model itself computed behind a step, by the step's index; `kept` are
    products of this layer's weights, and `buffers` the memory that layers share for their tiles.
    """
    walk = _Walk(
        layer, x, alpha, lengths, set(scopes), settings, real or {}, kept, buffers or Buffers()
    )
    return walk.run()


@dataclass
class _Parts:
    vectors: Vectors
    factors: Factors


@dataclass
class _Walk:
    """The state of one pass over a layer's steps."""

    layer: Layer
    x: Tensor
    alpha: Tensor
    lengths: Sequence[int]
    scopes: set[str]
    settings: Settings
    real: Mapping[int, Tensor]
    kept: KeptProducts | None
    buffers: Buffers
    result: LayerMaps = field(default_factory=LayerMaps)
    branches: list[Tensor | _Parts] = field(default_factory=list)
    normed: tuple[Factors, Tensor] | None = None  # the last factors whose norms were asked for

    @cached_property
    def last(self) -> int:
        """The last step that anybody asked for; statistics need them all."""
        if self.settings.statistics:
            return len(self.layer.steps) - 1
        wanted = [i for i, name in self.layer.scope_of_step.items() if name in self.scopes]
        return max(wanted, default=-1)

    def run(self) -> LayerMaps:
        self._weight_maps()
        state: Tensor | _Parts = self.x  # before the attention a token is its own only part
        for index, step in enumerate(self.layer.steps):
            if index > self.last and not self._needs_attention(state):
                break
            if isinstance(step, Branch):
                self.branches.append(state)
            elif isinstance(state, Tensor):
                if isinstance(step, Norm):
                    state = normalise_tokens(state, step)
                elif isinstance(step, Attention):
                    state = _Parts(*attend(step, state, self.alpha))
                    self._head_maps(state.factors)
                    self._record(index, state.vectors, state.factors)
                else:
                    raise ValueError(f"a {step.symbol} step cannot stand before the attention")
            elif isinstance(step, FeedForward):
                self._behind_feed_forward(index, step, state)
                break
            else:
                state = self._factored_step(step, state)
                self._record(index, state.vectors, state.factors)
        return self.result

    def _needs_attention(self, state: Tensor | _Parts) -> bool:
        return self.settings.heads and isinstance(state, Tensor)

    def _factored_step(self, step: Step, parts: _Parts) -> _Parts:
        vectors, factors = parts.vectors, parts.factors
        if isinstance(step, Norm):
            inverse = inverse_deviation(vectors.total, step)
            return _Parts(vectors.normalise(step, inverse), factors.normalise(step, inverse))
        if isinstance(step, Residual):
            own = self.branches.pop()
            if not isinstance(own, Tensor):
                raise ValueError(
                    "a residual before the feed-forward block must branch at the input"
                )
        elif isinstance(step, ParallelFeedForward):
            # The block reads x_i alone, so all of its output belongs to the diagonal.
            y = self.x if step.norm is None else normalise_tokens(self.x, step.norm)
            own = step.feed_forward.down(hidden(step.feed_forward, y))
        else:
            raise ValueError(f"a {step.symbol} step cannot stand behind the attention")
        return _Parts(Vectors(vectors.mixed, vectors.diagonal + own, vectors.bias), factors)

    def _behind_feed_forward(self, index: int, ff: FeedForward, parts: _Parts) -> None:
        """The block itself and every step behind it, whose parts exist only inside tiles."""
        names = self.layer.scope_of_step
        total = parts.vectors.total
        job = FeedForwardJob(
            names[index], ff, parts.factors, (), [], self.layer.reach, self.kept, self.buffers
        )
        at = None
        if self.settings.rule != "shapley":
            at = linearise(ff, total, parts.factors.bias, self.settings.rule)
        behind = output = ff.down(hidden(ff, total) if at is None else at.hidden)
        tail: list[tuple[int, TailStep, Vectors | None]] = []
        for position in range(index + 1, self.last + 1):
            step = self.layer.steps[position]
            if isinstance(step, Residual):
                saved = self.branches.pop()
                if isinstance(saved, Tensor):
                    bypass, factors = _own(saved), None
                else:
                    bypass, factors = saved.vectors, saved.factors
                behind = behind + bypass.total
                tail.append(
                    (position, AddBypass(names[position], factors, bypass.diagonal), bypass)
                )
            elif isinstance(step, Norm):
                inverse = inverse_deviation(behind, step)
                behind = normalise_tokens(behind, step)
                tail.append((position, Normalise(names[position], step, inverse), None))
            else:
                raise ValueError(f"{step} cannot stand behind the feed-forward block")
        job.tail = [change for _, change, _ in tail]
        if self.settings.statistics:
            self._statistics(job, total, output, [saved for _, _, saved in tail])
        vectors, norms = self._feed_forward(job, parts.vectors, at, output)
        self._record(index, vectors, norms[names[index]])
        if self.result.statistics is not None and job.ordinary is not None:
            own = torch.linalg.vector_norm(vectors.diagonal[..., job.ordinary], dim=-1)
            norms[ORDINARY].diagonal(dim1=1, dim2=2).copy_(own)
            self.result.statistics.ordinary = norms[ORDINARY]
        for position, change, saved_vectors in tail:
            if isinstance(change, Normalise):
                vectors = vectors.normalise(change.norm, change.inverse_deviation)
            elif saved_vectors is not None:
                vectors = vectors.add(saved_vectors)
            self._record(position, vectors, norms[change.scope])

    def _statistics(
        self,
        job: FeedForwardJob,
        total: Tensor,
        output: Tensor,
        bypasses: Sequence[Vectors | None],
    ) -> None:
        """Keep the block's vectors, and ask for the map without special dimensions."""
        found = FeedForwardStatistics(output, total)
        found.bypassed = next((saved.total for saved in bypasses if saved is not None), None)
        norm = next((change.norm for change in job.tail if isinstance(change, Normalise)), None)
        if norm is not None and norm.gamma is not None:
            count = max(1, round(SPECIAL_SHARE * len(norm.gamma)))
            order = norm.gamma.argsort()
            found.gamma, found.special = norm.gamma, order[:count]
            job.ordinary = order[count:].sort().values
        self.result.statistics = found

    def _feed_forward(
        self, job: FeedForwardJob, vectors: Vectors, at: Linearised | None, output: Tensor
    ) -> tuple[Vectors, dict[str, Tensor]]:
        """The block's vectors, their mixed part summed from the tiles, and all norms behind it.

        The fused kernel gives no vectors; there the mixed part is what the diagonal and the bias
        leave of the real output, and the kernel's parts are compared with it.
        """
        ff, settings = job.ff, self.settings
        if at is None:
            job.slopes = tuple(w.new_empty(0) for w in projections(ff))
            sampled = shapley_norms(
                job, vectors, self.lengths, settings.samples, settings.seed, settings.memory_limit
            )
            self.result.standard_error = {
                scope: error
                for scope, error in sampled.standard_error.items()
                if scope in self.scopes
            }
            tiles = sampled.tiles
            return Vectors(tiles.mixed, sampled.diagonal, sampled.bias), tiles.norms
        job.slopes = at.slopes
        diagonal = torch.zeros_like(at.bias)
        for w, slope in zip(projections(ff), at.slopes, strict=True):
            diagonal += (vectors.diagonal @ w) * slope
        diagonal, bias = diagonal @ ff.down.weight, ff.down(at.bias)
        job.output, job.mixed = output, output - diagonal - bias
        tiles, self.result.precision = run_feed_forward(
            job, self.lengths, settings.precision, settings.memory_limit
        )
        self.result.kernel_error = tiles.error
        return Vectors(tiles.mixed, diagonal, bias), tiles.norms

    def _record(self, index: int, vectors: Vectors, pairs: Factors | Tensor) -> None:
        """Keep a scope's map, mixing ratio and completeness error."""
        scope = self.layer.scope_of_step[index]
        if index in self.real:
            self.result.completeness[scope] = self._error(vectors.total, self.real[index])
        if scope not in self.scopes:
            return
        own = torch.linalg.vector_norm(vectors.diagonal, dim=-1)  # (b, i)
        others = torch.linalg.vector_norm(vectors.mixed, dim=-1)
        norms = pairs if isinstance(pairs, Tensor) else self._factored_norms(pairs).clone()
        norms.diagonal(dim1=1, dim2=2).copy_(own)
        self.result.norms[scope] = norms
        self.result.mixing[scope] = others / (others + own)

    def _factored_norms(self, factors: Factors) -> Tensor:
        """Norms of factored parts; a residual leaves them as they are."""
        if self.normed is None or self.normed[0] is not factors:
            self.normed = factors, factored_norms(factors, self.lengths, self.layer.reach)
        return self.normed[1]

    def _error(self, total: Tensor, real: Tensor) -> Tensor:
        """Worst ``‖Σ_j F_i(x_j) + b_i − y_i‖ / ‖y_i‖`` over the real tokens of the batch.

        It stays on the device: asking for the number there would stop the layers behind it.
        """
        y = real.to(total.dtype)
        error = torch.linalg.vector_norm(total - y, dim=-1)
        size = torch.linalg.vector_norm(y, dim=-1).clamp_min(torch.finfo(y.dtype).tiny)
        relative = (error / size).masked_fill(~self.is_token, 0)
        # NaN must not pass for a small error.
        return relative.max().nan_to_num(nan=float("inf"), posinf=float("inf"))

    @cached_property
    def is_token(self) -> Tensor:
        """Which places of the batch (b, i) hold tokens rather than padding."""
        lengths = torch.tensor(list(self.lengths)).to(self.x.device, non_blocking=True)
        return torch.arange(self.x.shape[1], device=self.x.device) < lengths[:, None]

    def _weight_maps(self) -> None:
        """ATTN-W, the head mean of α, and ATTNRES-W = ½α + ½I (Abnar & Zuidema 2020)."""
        mean = self.alpha.mean(1)  # (b, i, j)
        own = mean.diagonal(dim1=1, dim2=2)
        if "ATTN-W" in self.scopes:
            self.result.norms["ATTN-W"] = mean
            self.result.mixing["ATTN-W"] = 1 - own
        if "ATTNRES-W" in self.scopes:
            eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
            self.result.norms["ATTNRES-W"] = 0.5 * mean + 0.5 * eye
            self.result.mixing["ATTNRES-W"] = 0.5 * (1 - own)

    def _head_maps(self, factors: Factors) -> None:
        """``α^h_ij`` and ``α^h_ij ‖f^h(x_j)‖`` (Kobayashi et al. 2020, eq. 6)."""
        if self.settings.heads:
            sizes = torch.linalg.vector_norm(factors.values, dim=-1)  # (b, j, h)
            self.result.head_maps["ATTN-W"] = self.alpha
            self.result.head_maps["ATTN-N"] = self.alpha * sizes.transpose(1, 2)[:, :, None, :]


def _own(x: Tensor) -> Vectors:
    """A token's own vector, before anything is mixed."""
    zero = torch.zeros_like(x)
    return Vectors(zero, x, zero)
