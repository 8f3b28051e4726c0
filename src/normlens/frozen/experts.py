"""FF of a mixture of experts: each token has the blocks that it used, with their weights.

    F ← Σ_e w_ie FF_e(F),    b ← Σ_e w_ie FF_e(b)

The routing is taken as given, as α is: which experts a token used and their weights w are those of
the run. What is left is a gated block with the neurons of target i's experts, so each expert is
linearised at the tokens that used it (`feedforward`), and tokens are grouped by expert.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.feedforward import FrozenFeedForward
from normlens.frozen.parts import Bias
from normlens.frozen.rules import Linearised, linearise
from normlens.frozen.step import FrozenBlock, Scored
from normlens.layers import Experts, FeedForward


@dataclass(frozen=True)
class Used:
    """One expert at the tokens that used it."""

    experts: Experts
    expert: int | None  # None: the shared one
    rows: Tensor  # (t,) the tokens, counted through the batch, on the CPU and in order
    places: Tensor  # the same on the device
    weights: Tensor  # (t, 1)
    neurons: Linearised  # of (1, t, d) vectors
    incoming: Bias

    @cached_property
    def order(self) -> list[int]:
        """`rows` as numbers."""
        return self.rows.tolist()

    @property
    def ff(self) -> FeedForward:
        """The expert's weights, converted now."""
        return self.experts.member(self.expert)

    @property
    def block(self) -> FrozenFeedForward:
        """The expert, linearised, on the vectors (…, 1, t, d) of its tokens."""
        return FrozenFeedForward(self.ff, self.neurons, self.incoming)

    @property
    def inside(self) -> Tensor | float:
        """What the expert's input is multiplied by."""
        return self.weights if self._weighs_input else 1.0

    @property
    def outside(self) -> Tensor | float:
        """What the expert's output is multiplied by."""
        return 1.0 if self._weighs_input else self.weights

    @property
    def _weighs_input(self) -> bool:
        return self.experts.weighs_input and self.expert is not None

    def some(self, chosen: Tensor, rows: Tensor) -> Used:
        """The expert at some of its tokens, which get new numbers."""
        device = self.places.device
        at = chosen.to(device)
        neurons = self.neurons
        return replace(
            self,
            rows=rows,
            places=rows.to(device),
            weights=self.weights[at],
            neurons=Linearised(
                tuple(slope[:, at] for slope in neurons.slopes),
                lambda: neurons.bias[:, at],
                neurons.hidden[:, at],
                neurons.from_zero,
            ),
            incoming=self.incoming.at_tokens(at),
        )


@dataclass(frozen=True)
class FrozenExperts(FrozenBlock):
    """A mixture of experts with the routing of one run, linearised at its real input."""

    experts: Experts
    shape: tuple[int, int]  # sequences, tokens
    used: tuple[Used, ...]
    d: int

    @classmethod
    def at(cls, experts: Experts, y: Tensor, bias: Bias, rule: str) -> FrozenExperts:
        """The block at input `y` (b, i, d), of which no token owns `bias`."""
        b, n, d = y.shape
        vectors, bias = y.reshape(b * n, d), bias.in_one_row()
        used = []
        for expert, rows, weights in _groups(experts, y):
            places = rows.to(y.device)
            here, incoming = vectors[places][None], bias.at_tokens(places)
            if experts.weighs_input and expert is not None:
                here, incoming = here * weights, incoming.weighted(weights[:, 0])
            neurons = linearise(experts.member(expert), here, incoming, rule)
            used.append(Used(experts, expert, rows, places, weights, neurons, incoming))
        return cls(experts, (b, n), tuple(used), d)

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_e w_ie Σ_k ((v W^e_k) ⊙ r^ke_i) W^e_down`` of vectors (…, b, i, d)."""
        return self._by_expert(v, lambda used, rows: used.block.linear(rows))

    def adjoint(self, g: Tensor) -> Tensor:
        """The transpose of `linear`."""
        return self._by_expert(g, lambda used, rows: used.block.adjoint(rows), back=True)

    def score(self, g: Tensor) -> Scored:
        """What the block adds to the score of g (…, b, i, d)."""
        flat = g.flatten(-3, -2)
        arriving = torch.zeros_like(flat)
        passed, unowned = flat.new_zeros(flat.shape[:-1]), flat.new_zeros(flat.shape[:-1])
        biased = False
        for used in self.used:
            scored = used.block.score((flat[..., used.places, :] * used.outside).unsqueeze(-3))
            arriving.index_add_(-2, used.places, scored.arriving.squeeze(-3) * used.inside)
            assert scored.passed is not None
            passed.index_add_(-1, used.places, scored.passed.squeeze(-2))
            if scored.unowned is not None:
                biased = True
                unowned.index_add_(-1, used.places, scored.unowned.squeeze(-2))
        return Scored(
            arriving.unflatten(-2, self.shape),
            passed.unflatten(-1, self.shape),
            unowned.unflatten(-1, self.shape) if biased else None,
        )

    def from_token(self, first: int) -> FrozenExperts:
        """The linear face for the tokens from `first` on."""
        b, n = self.shape
        some = []
        for used in self.used:
            sequence, token = used.rows // n, used.rows % n
            chosen = (token >= first).nonzero()[:, 0]
            rows = sequence[chosen] * (n - first) + token[chosen] - first
            if len(rows):
                some.append(used.some(chosen, rows))
        return replace(self, shape=(b, n - first), used=tuple(some))

    @property
    def unowned(self) -> Tensor:
        """What the block adds to the bias it is given, (b, i, d)."""
        return self._sum(lambda used: used.block.unowned)

    @cached_property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        return self._sum(lambda used: used.block.output)

    @cached_property
    def outgoing(self) -> Bias:
        """The bias behind the block: the incoming one passed through it, and the block's."""
        return Bias.dense(self._sum(lambda used: used.block.outgoing.vectors))

    def on_bias(self, bias: Bias | None) -> Bias:
        """The block is frozen at its bias, too."""
        return self.outgoing

    def at_targets(self, index: int, targets: slice) -> Iterator[tuple[Used, Tensor, slice]]:
        """The experts that some targets of a sequence use.

        With each, which of the targets use it, and where they stand among its tokens.
        """
        first = index * self.shape[1] + targets.start
        last = first + targets.stop - targets.start
        for used in self.used:
            start, stop = (bisect_left(used.order, end) for end in (first, last))
            if start < stop:
                yield used, used.places[start:stop] - first, slice(start, stop)

    def _by_expert(
        self, v: Tensor, face: Callable[[Used, Tensor], Tensor], back: bool = False
    ) -> Tensor:
        """A face of each expert on the vectors (…, b, i, d) of its tokens, summed by token."""
        flat = v.flatten(-3, -2)
        total = torch.zeros_like(flat)
        for used in self.used:
            before, behind = used.inside, used.outside
            if back:
                before, behind = behind, before
            rows = (flat[..., used.places, :] * before).unsqueeze(-3)
            total.index_add_(-2, used.places, face(used, rows).squeeze(-3) * behind)
        return total.unflatten(-2, self.shape)

    def _sum(self, vectors: Callable[[Used], Tensor]) -> Tensor:
        """``Σ_e w_ie v^e_i`` of each expert's vectors (1, t, d), as (b, i, d)."""
        b, n = self.shape
        total: Tensor | None = None
        for used in self.used:
            weighted = vectors(used)[0] * used.outside
            if total is None:
                total = weighted.new_zeros(b * n, self.d)
            total.index_add_(0, used.places, weighted)
        assert total is not None
        return total.view(b, n, self.d)


def _groups(experts: Experts, y: Tensor) -> Iterator[tuple[int | None, Tensor, Tensor]]:
    """Each expert that was used, its tokens in order, and their weights (t, 1)."""
    routing, (b, n, _) = experts.routing, y.shape
    if routing is None:
        raise InputError(
            "a layer of experts is analysed with the routing of a run; take it from a trace"
        )
    count = routing.experts.shape[-1]
    chosen = routing.experts.reshape(b * n * count).cpu()
    weights = routing.weights.to(y.dtype).reshape(b * n * count, 1) * experts.scale
    order = torch.argsort(chosen, stable=True)
    sizes = torch.bincount(chosen, minlength=len(experts.members)).tolist()
    for expert, slots in enumerate(order.split(sizes)):
        if len(slots) and expert < len(experts.members):
            yield expert, slots // count, weights[slots.to(y.device)]
    if experts.shared is not None:
        rows = torch.arange(b * n)
        if routing.shared is None:
            yield None, rows, y.new_full((b * n, 1), experts.scale)
        else:
            yield None, rows, routing.shared.to(y.dtype).reshape(b * n, 1) * experts.scale
