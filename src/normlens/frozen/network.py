"""Vectors of some sources through frozen layers, and the frozen readout behind the last of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normlens.frozen.activations import Nonlinearity, activation
from normlens.frozen.attention import FrozenAttention
from normlens.frozen.layer import FrozenLayer, Observer
from normlens.frozen.parts import Chain, FrozenStep, State, frozen_at, inner, relative_error
from normlens.layers import Elementwise, HeadStep
from normlens.plan.costs import source_memory, sources_at_once

# A frozen readout: the steps behind the last layer, from vectors to what a score is read from.
#
# Norms and dense maps keep their rule; an activation has the slope of the rule, as in a
# feed-forward block:
#
#     ACT    v ← v ⊙ r               g ← g ⊙ r          g(z) − z ⊙ r


@dataclass(frozen=True)
class FrozenElementwise(FrozenStep):
    """An activation with the slopes that it has at its real input."""

    slope: Tensor  # r (…, d)
    constant: Tensor  # g(z) − z ⊙ r (…, d)

    @classmethod
    def at(cls, step: Elementwise, z: Tensor, bias: Tensor, rule: str) -> FrozenElementwise:
        """The activation at z (…, d), of which no token owns `bias`."""
        neurons = Nonlinearity(activation(step.activation)).linearised(rule, [z], [bias])
        (slope,) = neurons.slopes
        return cls(slope, neurons.hidden - z * slope)

    def linear(self, v: Tensor) -> Tensor:
        """``v ⊙ r``."""
        return v * self.slope

    def adjoint(self, g: Tensor) -> Tensor:
        """``g ⊙ r``."""
        return g * self.slope

    @property
    def bias_part(self) -> Tensor:
        """``g(z) − z ⊙ r``."""
        return self.constant


@dataclass(frozen=True)
class FrozenReadout:
    """Steps in order, frozen at the vectors that passed them."""

    steps: tuple[FrozenStep, ...]
    output: Tensor  # (…, d) behind the last step
    bias: Tensor  # (…, d), the part of the output that no token owns if all of the input is owned

    @classmethod
    def at(
        cls, steps: Sequence[HeadStep], y: Tensor, rule: str, bias: Tensor | None = None
    ) -> FrozenReadout:
        """The steps at their real input `y` (…, d), of which no token owns `bias`."""
        frozen: list[FrozenStep] = []
        unowned = torch.zeros_like(y) if bias is None else bias
        for step in steps:
            if isinstance(step, Elementwise):
                frozen.append(FrozenElementwise.at(step, y, unowned, rule))
            else:
                frozen.append(frozen_at(step, y))
            y, unowned = frozen[-1].apply(y), frozen[-1].apply(unowned)
        return cls(tuple(frozen), y, unowned)

    def linear(self, v: Tensor) -> Tensor:
        """What the steps make of vectors (…, d), without any bias."""
        return Chain(self.steps).linear(v)

    def score(self, g: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """The gradient at the input of g (…, d) at the output, and what no token owns by step."""
        bias_part: list[Tensor | None] = []
        for step in reversed(self.steps):
            bias_part.append(inner(g, step.bias_part))
            g = step.adjoint(g)
        return g, bias_part[::-1]


# Whole vectors: what each of the model's input tokens gave to every vector behind it.
#
#     V^0_ik = δ_ik e_k,        V^ℓ_·k = the frozen layer's linear face of V^{ℓ−1}_·k
#     Σ_k V^ℓ_ik + b^ℓ_i = x^ℓ_i                                               (completeness)
#
# Some sources k are pushed through a layer at a time, so that memory is sources · n · d. Where no
# token sees a later one, a source has given nothing to earlier targets, and those are left out.
#
# Tokens of another sequence enter a layer that reads it, by the vectors that they gave to it:
#
#     V^ℓ_·k = the linear face of V^{ℓ−1}_·k and of what k gave to the other sequence


@dataclass(frozen=True)
class Sources:
    """What neighbouring sources gave to every target from `since` on, at one point."""

    first: int  # the first of the sources
    since: int  # earlier targets have nothing of them
    vectors: Tensor  # V (k, b, i, d)
    of_other: bool = False  # whether they are tokens of another sequence than the targets

    @classmethod
    def at_input(cls, x: Tensor, first: int, count: int, causal: bool) -> Sources:
        """Sources `first` to `first + count` as they enter the model: each is its own vector."""
        since = first if causal else 0
        b, n, d = x.shape
        count = min(count, n - first)
        vectors = x.new_zeros(count, b, n - since, d)
        chosen = torch.arange(count, device=x.device)
        vectors[chosen, :, chosen + first - since] = x[:, first : first + count].transpose(0, 1)
        return cls(first, since, vectors)

    @classmethod
    def from_other(cls, first: int, gave: Tensor, x: Tensor) -> Sources:
        """Sources of another sequence, to whose vectors they `gave` (k, b, m, d), nothing to x."""
        return cls(first, 0, x.new_zeros(len(gave), *x.shape), of_other=True)

    def through(
        self,
        frozen: FrozenLayer,
        observe: Callable[[int, Sources], None],
        gave: Mapping[str, Tensor] | None = None,
    ) -> Sources:
        """The same sources behind a layer; `observe` is shown them behind each of its steps.

        `gave` is what they gave to the vectors of other sequences that the layer reads.
        """

        def seen(step: int, vectors: Tensor) -> None:
            observe(step, replace(self, vectors=vectors))

        behind = frozen.from_token(self.since).forward(self.vectors, gave, observe=seen)
        return replace(self, vectors=behind)

    @property
    def own(self) -> Tensor:
        """``V_kk`` of these sources, (k, b, d)."""
        count = torch.arange(len(self.vectors), device=self.vectors.device)
        return self.vectors[count, :, count + self.first - self.since]


@dataclass(frozen=True)
class WholeNorms:
    """What is kept of the whole vectors at one point, filled with sources as they come."""

    norms: Tensor  # ‖V_ik‖ (b, i, k), the other sequence's sources first
    own: Tensor  # V_ii (b, i, d)
    total: Tensor  # Σ_k V_ik (b, i, d)
    others: int = 0  # sources of another sequence

    @classmethod
    def empty(cls, x: Tensor, others: int = 0, width: int | None = None) -> WholeNorms:
        """Nothing yet, for vectors like `x` (b, i, d) and `others` sources of another sequence.

        Inside a bottleneck the vectors have another `width` than at the layer's input.
        """
        b, n, d = x.shape
        size = b, n, d if width is None else width
        return cls(x.new_zeros(b, n, others + n), x.new_zeros(size), x.new_zeros(size), others)

    def add(self, sources: Sources) -> None:
        """Take the norms of these sources' vectors, and add them to the sums."""
        k = slice(sources.first, sources.first + len(sources.vectors))
        first = sources.first if sources.of_other else sources.first + self.others
        norms = torch.linalg.vector_norm(sources.vectors, dim=-1)  # (k, b, i)
        self.norms[:, sources.since :, first : first + len(norms)] = norms.permute(1, 2, 0)
        if not sources.of_other:
            self.own[:, k] = sources.own.transpose(0, 1)
        self.total[:, sources.since :] += sources.vectors.sum(0)

    def mixing(self) -> tuple[Tensor, Tensor]:
        """``‖Σ_{k≠i} V_ik‖`` and ``‖V_ii‖``, (b, i)."""
        others = torch.linalg.vector_norm(self.total - self.own, dim=-1)
        return others, torch.linalg.vector_norm(self.own, dim=-1)

    def error(self, bias: Tensor, real: Tensor, lengths: Sequence[int]) -> Tensor:
        """The worst relative error of ``Σ_k V_ik + b_i`` against the model's vectors."""
        return relative_error(self.total + bias, real, lengths)


# The parts of some sources as vectors: F_i(x_j) of a few tokens j and every target i.
#
# Norms need no such vectors (`parts`, `tiles`), unless more stands behind a feed-forward block
# than its tiles know (`Layer.by_source`): several blocks, or a projection. There every part passes
# itself: n² · d numbers, of which a memory limit holds those of a few sources.


def source_parts(
    frozen: FrozenLayer, first: int, last: int, observe: Observer | None = None
) -> Tensor:
    """``F_i(x_j)`` behind the frozen steps, of the sources from `first` to before `last`.

    Shape (j, b, i, d). Biases belong to tokens as in norm maps: value biases, and the β of a norm
    before the attention, to their source. `observe` is shown the parts behind each step from the
    attention on.
    """
    state = State(_Vectors(frozen.x, first))
    state.start = state.stream
    for index, step in enumerate(frozen.steps):

        def act(v: _Vectors, step: FrozenStep = step) -> _Vectors:
            if isinstance(step, FrozenAttention):
                return _Vectors(step.source_parts(first, last), first, mixed=True)
            return replace(v, vectors=(step.linear if v.mixed else step.apply)(v.vectors))

        step.pass_on(state, act)
        if observe is not None and state.stream.mixed:
            observe(index, state.stream.vectors)
    assert state.stream.mixed
    return state.stream.vectors


@dataclass(frozen=True)
class _Vectors:
    """Each token's own vector (b, i, d), or from the attention on the parts of some sources."""

    vectors: Tensor  # (j, b, i, d) if they are mixed
    first: int  # of the sources
    mixed: bool = False

    def __add__(self, other: _Vectors) -> _Vectors:
        """The sum; what a token adds itself belongs to the parts where i = j."""
        if self.mixed == other.mixed:
            return replace(self, vectors=self.vectors + other.vectors)
        parts = self.vectors.clone()
        places = torch.arange(len(parts), device=parts.device)
        sources = places + self.first
        parts[places, :, sources] += other.vectors[:, sources].transpose(0, 1)
        return replace(self, vectors=parts)


def norms_by_source(
    frozen: FrozenLayer, since: int, last: int, limit: int | None
) -> Iterator[tuple[int, WholeNorms]]:
    """Norms of the parts, and their sums, behind each component from `since` to `last`."""
    frozen = replace(frozen, steps=frozen.steps[: last + 1])
    taken: dict[int, WholeNorms] = {}
    b, n, _ = frozen.x.shape
    at_once = sources_at_once(source_memory(frozen.layer, b, n, frozen.x.itemsize), n, limit)
    for first in range(0, n, at_once):

        def take(step: int, parts: Tensor, first: int = first) -> None:
            if step < since or step not in frozen.layer.scope_of_step:
                return
            if step not in taken:
                taken[step] = WholeNorms.empty(frozen.x, width=parts.shape[-1])
            taken[step].add(Sources(first, 0, parts))

        source_parts(frozen, first, min(first + at_once, n), take)
    yield from taken.items()
