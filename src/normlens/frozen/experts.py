"""FF of a mixture of experts: each token has the blocks that it used, with their weights.

    F ← Σ_e w_ie FF_e(F),    b ← Σ_e w_ie FF_e(b)

The routing is taken as given, as α is: which experts a token used and their weights w are those of
the run. What is left is a gated block with the neurons of target i's experts, so each expert is
linearised at the tokens that used it (`feedforward`), and tokens are grouped by expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.activations import Linearised
from normlens.frozen.feedforward import FrozenFeedForward
from normlens.frozen.parts import Scored
from normlens.frozen.tiles import FeedForwardBlock, Job
from normlens.layers import Experts


@dataclass(frozen=True)
class Used:
    """One expert at the tokens that used it."""

    experts: Experts
    expert: int | None  # None: the shared one
    rows: Tensor  # (t,) the tokens, counted through the batch, on the CPU and in order
    places: Tensor  # the same on the device
    inside: Tensor  # what the expert's input is multiplied by, (t, 1)
    outside: Tensor  # what its output is multiplied by, (t, 1)
    neurons: Linearised  # of (1, t, d) vectors

    @property
    def block(self) -> FrozenFeedForward:
        """The expert, its weights converted now, on the vectors (…, 1, t, d) of its tokens."""
        return FrozenFeedForward(self.experts.member(self.expert), self.neurons)

    def at(self, some: Tensor | slice, rows: Tensor, places: Tensor) -> Used:
        """The expert at some of its tokens, which are counted anew."""
        inside, outside, neurons = self.inside[some], self.outside[some], self.neurons
        given = rows, places, inside, outside, neurons.at_tokens(some)
        return Used(self.experts, self.expert, *given)


@dataclass(frozen=True)
class FrozenExperts(FeedForwardBlock):
    """A mixture of experts with the routing of one run, linearised at its real input."""

    ff: Experts
    shape: tuple[int, int]  # sequences, tokens
    used: tuple[Used, ...]

    @classmethod
    def at(cls, experts: Experts, y: Tensor, bias: Tensor | None, rule: str) -> FrozenExperts:
        """The block at input `y` (b, i, d), of which no token owns `bias`."""
        b, n, d = y.shape
        vectors = y.reshape(b * n, d)
        before = None if bias is None else bias.expand_as(y).reshape(b * n, d)
        used = []
        for expert, rows, weights in _groups(experts, y):
            places, inside, outside = rows.to(y.device), torch.ones_like(weights), weights
            if experts.weighs_input and expert is not None:
                inside, outside = outside, inside
            here = vectors[places][None] * inside
            incoming = None if before is None else before[places][None] * inside
            block = FrozenFeedForward.at(experts.member(expert), here, incoming, rule)
            used.append(Used(experts, expert, rows, places, inside, outside, block.neurons))
        return cls(experts, (b, n), tuple(used))

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_e w_ie Σ_k ((v W^e_k) ⊙ r^ke_i) W^e_down`` of vectors (…, b, i, d)."""
        flat = v.flatten(-3, -2)
        total = torch.zeros_like(flat)
        for used in self.used:
            rows = (flat[..., used.places, :] * used.inside).unsqueeze(-3)
            total.index_add_(-2, used.places, used.block.linear(rows).squeeze(-3) * used.outside)
        return total.unflatten(-2, self.shape)

    def score(self, g: Tensor) -> Scored:
        """What the block adds to the score of g (…, b, i, d)."""
        flat = g.flatten(-3, -2)
        arriving, passed = torch.zeros_like(flat), flat.new_zeros(flat.shape[:-1])
        bias_part: Tensor | None = None
        for used in self.used:
            scored = used.block.score((flat[..., used.places, :] * used.outside).unsqueeze(-3))
            arriving.index_add_(-2, used.places, scored.arriving.squeeze(-3) * used.inside)
            assert scored.passed is not None
            passed.index_add_(-1, used.places, scored.passed.squeeze(-2))
            if scored.bias_part is not None:
                share = scored.bias_part.squeeze(-2)
                bias_part = torch.zeros_like(passed) if bias_part is None else bias_part
                bias_part.index_add_(-1, used.places, share)
        return Scored(
            arriving.unflatten(-2, self.shape),
            passed.unflatten(-1, self.shape),
            None if bias_part is None else bias_part.unflatten(-1, self.shape),
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
                some.append(used.at(chosen.to(used.places), rows, rows.to(used.places)))
        return FrozenExperts(self.ff, (b, n - first), tuple(some))

    @cached_property
    def bias_part(self) -> Tensor | None:
        """What the block adds to the bias it is given, (b, i, d)."""
        return self._sum(lambda block: block.bias_part)

    @cached_property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        total = self._sum(lambda block: block.output)
        assert total is not None
        return total

    def affine(self, v: Tensor | None) -> Tensor | None:
        """A bias (b, i, d) or (d,) behind the block."""
        return super().affine(None if v is None else v.expand(*self.shape, -1))

    # Parts behind a mixture of experts, for a tile of targets and sources.
    #
    # Each target has its own experts, so no rows of neurons are shared by all targets of a source.
    # Inside a tile the parts themselves are formed, and targets that use the same expert pass it
    # together. For many sources, one matrix is formed per target.

    def tile(
        self, job: Job, index: int, targets: slice, sources: slice, rows: list[Tensor]
    ) -> Tensor:
        """``Σ_e w_ie Σ_k ((F_i(x_j) W^e_k) ⊙ r^ke_i) W^e_down``, (j, i, d)."""
        parts = torch.bmm(*job.factors.tile(index, targets, sources))  # (j, i, d)
        return self._at_targets(index, targets).linear(parts[:, None])[:, 0]

    def matrices(self, index: int, targets: slice) -> Tensor:
        """``M_i = Σ_e w_ie Σ_k W^e_k diag(r^ke_i) W^e_down`` of some targets, (i, d, d)."""
        d = self.ff.members[0].up.weight.shape[0]
        matrices = self.used[0].inside.new_zeros(targets.stop - targets.start, d, d)
        for used in self._at_targets(index, targets).used:
            block, weights = used.block, used.inside * used.outside
            for row, target in enumerate(used.rows.tolist()):
                scaled = torch.zeros_like(block.ff.up.weight)
                for w, slope in block.branches:
                    scaled.addcmul_(w, slope[0, row] * weights[row])
                matrices[target].addmm_(scaled, block.ff.down.weight)
        return matrices

    def _at_targets(self, index: int, targets: slice) -> FrozenExperts:
        """The block of some targets of one sequence."""
        first, last = (index * self.shape[1] + end for end in (targets.start, targets.stop))
        used = []
        for each in self.used:
            start, stop = torch.searchsorted(each.rows, torch.tensor([first, last])).tolist()
            if start < stop:
                some = slice(start, stop)
                used.append(each.at(some, each.rows[some] - first, each.places[some] - first))
        return FrozenExperts(self.ff, (1, last - first), tuple(used))

    def _sum(self, of: Callable[[FrozenFeedForward], Tensor | None]) -> Tensor | None:
        """``Σ_e w_ie v^e_i`` of each expert's vectors (1, t, d), as (b, i, d); None of none."""
        total: Tensor | None = None
        for used in self.used:
            vectors = of(used.block)
            if vectors is not None:
                weighted = vectors.expand(1, len(used.rows), -1)[0] * used.outside
                if total is None:
                    total = weighted.new_zeros(prod(self.shape), weighted.shape[-1])
                total.index_add_(0, used.places, weighted)
        return None if total is None else total.unflatten(0, self.shape)


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
        shared = torch.ones(b, n) if routing.shared is None else routing.shared
        yield None, torch.arange(b * n), shared.to(y).reshape(b * n, 1) * experts.scale
