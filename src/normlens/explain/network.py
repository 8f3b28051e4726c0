"""The frozen network: layers frozen on demand, the backward pass of a score, whole vectors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
from normlens.explain.questions import Start
from normlens.frozen.layer import FrozenLayer, freeze
from normlens.frozen.network import FrozenReadout, Sources
from normlens.frozen.scores import (
    LayerScores,
    cross_attentions,
    cross_flow,
    cross_flow_by_head,
    flow,
    flow_by_head,
    layer_scores,
    scores_behind,
)
from normlens.gpu.matmul import pinned_copy, splits
from normlens.layers import Layer, Reach
from normlens.models.base import Adapter
from normlens.models.parts import ENCODER
from normlens.pipeline.batches import check_completeness
from normlens.pipeline.guard import Guard, Seen
from normlens.plan.costs import VectorSizes, group_sources
from normlens.plan.memory import relative_error
from normlens.results.words import RES
from normlens.trace.checks import check_tokens
from normlens.trace.recorder import Call, LayerTrace
from normlens.trace.run import run_again

# The frozen network: every layer of a traced model, frozen when it is asked for.
#
# What freezing needs is kept from the forward pass where it is small. Where it is not, only each
# layer's input is, and the model runs the layer again.


#: The share of the memory limit that attention weights may take; the rest is for the way back.
KEPT_SHARE = 8


@dataclass(frozen=True)
class _Visited:
    """A layer that the model has run: enough to run it again."""

    block: nn.Module
    call: Call
    x: Tensor  # (b, i, d)
    trace: LayerTrace | None  # all of it, where that is small
    outputs: int  # that the block returned in a tuple; 0: a vector alone


@dataclass
class FrozenNetwork:
    """A model's layers, frozen at one batch."""

    adapter: Adapter
    lengths: list[int]
    rule: str
    dtype: torch.dtype  # of the algebra
    kept_bytes: int  # that attention weights may take
    visited: list[_Visited] = field(default_factory=list)
    last: Tensor | None = None  # (b, i, d), behind the last layer
    real: dict[int, Tensor] = field(default_factory=dict)  # of the layer that was frozen last
    errors: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # by layer and scope
    reaches: list[Reach] = field(default_factory=list)  # of every layer
    watch: Callable[[LayerTrace], object] | None = None  # is shown every layer as the model ran it
    sources: dict[str, Tensor] = field(default_factory=dict)  # other sequences (b, k, d), by name
    source_lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)  # their real tokens
    layer_in_words: str = "layer"
    first: int = 0  # the place of its first layer among all that the model runs
    guard: Guard | None = None

    def compare(self) -> None:
        """Compare layers that the model has run with float32, where that is due."""
        if self.guard is None:
            return
        kept: dict[Hashable, Seen] = {}
        for index, visited in enumerate(self.visited):
            name = f"{self.layer_in_words} {index}"
            place = self.first + index
            seen = Seen(place, name, visited.block, visited.call, self.lengths)
            self.guard.keep(kept, self.rule, seen)
        self.guard.layers(self.rule, kept)

    def visit(self, trace: LayerTrace) -> None:
        """Keep what the way back needs of a layer that the model has run."""
        if self.last is not None and not _same(trace.x, self.last):
            raise_between(self.adapter, trace.index)
        check_tokens(self.adapter, trace, self.lengths)
        if self.watch is not None:
            self.watch(trace)
        self.reaches.append(trace.layer.reach)
        for name, vectors in trace.sources.items():
            if name not in self.sources:  # all layers read the same
                self.sources[name] = vectors.detach().to(self.dtype)
        self.kept_bytes -= sum(alpha.nbytes for alpha in trace.alphas)
        kept = replace(trace, rows={}) if self.kept_bytes >= 0 else None
        self.visited.append(_Visited(trace.block, trace.call, trace.x, kept, trace.outputs))
        self.last = trace.output.detach()

    @property
    def returned(self) -> dict[nn.Module, Any]:
        """For every block, the last one's vector in the form in which that block returned its."""
        return {
            one.block: (self.last, *[None] * (one.outputs - 1)) if one.outputs else self.last
            for one in self.visited
        }

    def __len__(self) -> int:
        return len(self.visited)

    def x(self, index: int) -> Tensor:
        """The input (b, i, d) of one layer, in the algebra's precision."""
        return self.visited[index].x.detach().to(self.dtype)

    @property
    def causal(self) -> bool:
        """Whether no layer lets a token see a later one."""
        return all(reach.ahead == 0 for reach in self.reaches)

    def layer(self, index: int) -> FrozenLayer:
        """One layer, frozen, and compared with what the model computed."""
        visited = self.visited[index]
        trace = visited.trace
        if trace is None:
            trace = run_again(self.adapter, index, visited.block, visited.call)
        layer = trace.layer.to(self.dtype, split=True)
        self.real = trace.real
        split = splits(trace.alphas[0])
        return freeze(
            layer,
            trace.x.to(self.dtype),
            [alpha if split else alpha.to(self.dtype) for alpha in trace.alphas],
            self.lengths,
            self.rule,
            sources=self.sources,
            parts=False,
            real=trace.real,
            source_lengths=self.source_lengths,
            observe=lambda step, y: self._compare(index, layer, step, y, trace.real),
        )

    def _compare(
        self, index: int, layer: Layer, step: int, y: Tensor, real: dict[int, Tensor]
    ) -> None:
        """Note how far a vector that was computed here misses the model's."""
        if step in real:
            error = relative_error(y, real[step], self.lengths)
            self._note(index, layer.scope_of_step[step], error)

    def compare_scores(self, index: int, frozen: FrozenLayer, scores: LayerScores) -> None:
        """Note how far blocks, whose output was taken from the model, miss it where scores read it.

        An error e of the output y_i, in no special direction, moves a score by ``g_i · e``, about
        ``‖g_i‖ ‖e‖ / √d``: so the root mean square of ``√d (g_i · e) / (‖g_i‖ ‖y_i‖)`` is about
        ``‖e‖ / ‖y_i‖``.
        """
        for step, passed in scores.passed.items():
            real = self.real.get(step)
            if real is None:
                continue
            g, y = scores.gradients[step], real.to(self.dtype)
            total = passed if step not in scores.unowned else passed + scores.unowned[step]
            sizes = torch.linalg.vector_norm(g, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
            missed = (g * y).sum(-1) - total
            read = sizes > 0
            relative = torch.where(read, missed / sizes.where(read, torch.ones_like(sizes)), 0)
            mean = relative.square().sum() / read.sum().clamp_min(1)
            error = (y.shape[-1] * mean).sqrt().nan_to_num(nan=float("inf"))
            self._note(index, frozen.layer.scope_of_step[step], error)

    def _note(self, index: int, scope: str, error: Tensor) -> None:
        worst = self.errors.get((index, scope))
        self.errors[index, scope] = error if worst is None else torch.maximum(worst, error)

    def check(self, dtype: torch.dtype) -> None:
        """Raise where a frozen layer misses the model's own vectors."""
        if self.errors:
            values = torch.stack(list(self.errors.values())).tolist()
            named = [(*key, value) for key, value in zip(self.errors, values, strict=True)]
            check_completeness(named, dtype, self.layer_in_words)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b)


def raise_between(adapter: Adapter, index: int) -> None:
    """Refuse a model that does more between two layers than its adapter describes."""
    outside = adapter.outside_scopes()
    raise UnsupportedModelError(
        f"the model changes its vectors between layers {index - 1} and {index}, which no layer "
        f"describes{f' ({outside})' if outside else ''}; scores cannot be carried through that"
    )


# The way back: scores carried from where they are read to the model's input tokens.
#
#     Σ_k c_k + Σ_{ℓ, component} bias = s                    (completeness, at every layer)
#
# with ``c_k = g_k · e_k`` of the vectors e_k that enter the first layer.


@dataclass(frozen=True)
class Wanted:
    """What to keep on the way."""

    flow: bool = True  # the map of every layer
    heads: bool = False  # the same by head
    scopes: frozenset[str] = frozenset()  # the same behind these scopes


@dataclass
class FromOther:
    """What a stack's layers gave to the other sequence that they read, and by which way.

    The first two axes are (t, b); k are the other sequence's tokens.
    """

    gradient: Tensor | None = None  # (t, b, k, d), of all layers that were passed
    nodes: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, k), of this and later
    heads: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, h, i)
    flows: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, i, k)
    head_flows: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, h, i, k)
    scope_flows: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # (t, b, i, k)


@dataclass
class Carried:
    """What the way back of several scores of a batch left behind; the first two axes are (t, b)."""

    nodes: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, j), c of its input
    components: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # (t, b, i)
    unowned: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # (t, b, i)
    heads: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, h, i)
    flows: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, i, j)
    head_flows: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, h, i, j)
    scope_flows: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # (t, b, i, j)
    other: FromOther = field(default_factory=FromOther)


def bring_home(carried: Carried) -> None:
    """Copy what the way back leaves on a GPU to the CPU; it is there after `wait_for`."""
    kept: list[dict[Any, Tensor]] = [
        value
        for part in (carried, carried.other)
        for value in vars(part).values()
        if isinstance(value, dict)
    ]
    for tensors in kept:
        tensors.update({key: pinned_copy(tensor) for key, tensor in tensors.items()})


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def entering(starts: Sequence[Sequence[Start]]) -> dict[int, Tensor]:
    """The gradients (t, b, n, d) that begin behind each layer, zeros for the other scores."""

    def behind(layer: int, start: Start) -> Tensor:
        return start.gradient if start.layer == layer else torch.zeros_like(start.gradient)

    layers = {start.layer for row in starts for start in row}
    return {
        layer: torch.stack([torch.stack([behind(layer, one) for one in row]) for row in starts])
        for layer in layers
    }


def carry(
    network: FrozenNetwork,
    gradients: Mapping[int, Tensor],
    wanted: Wanted,
    advance: Callable[[], None] | None = None,
) -> Carried:
    """Carry gradients (t, b, n, d), which begin behind these layers, back to the first layer."""
    carried = Carried()
    g: Tensor | None = None
    for index in reversed(range(max(gradients) + 1)):
        if index in gradients:
            g = gradients[index] if g is None else g + gradients[index]
        assert g is not None
        g = carry_through(network, index, g, wanted, carried)
        if advance is not None:
            advance()
    return carried


def carry_through(
    network: FrozenNetwork, index: int, g: Tensor, wanted: Wanted, carried: Carried
) -> Tensor:
    """Carry g (t, b, i, d) behind one layer to its input, and keep what is wanted on the way."""
    frozen = network.layer(index)
    names, scopes = frozen.layer.step_names, frozen.layer.scope_of_step
    steps = {step: scope for step, scope in scopes.items() if scope in wanted.scopes}
    scores = layer_scores(frozen, g, keep={*steps, *network.real})
    network.compare_scores(index, frozen, scores)
    arriving = scores.arriving
    for step, share in scores.ways.items():
        carried.components[index, names[step]] = share
    if scores.residual is not None:
        carried.components[index, RES] = scores.residual
    for step, share in scores.unowned.items():
        carried.unowned[index, names[step]] = share
    crossing = dict(cross_attentions(frozen))
    for step, share in scores.heads.items():
        (carried.other.heads if step in crossing else carried.heads)[index] = share
    carried.nodes[index] = (arriving * frozen.x).sum(-1)
    if wanted.flow:
        carried.flows[index] = flow(frozen, scores)
    if wanted.heads:
        carried.head_flows[index] = flow_by_head(frozen, scores)
    behind = {
        scope: scores_behind(frozen, scores.gradients[step], step) for step, scope in steps.items()
    }
    for scope, part in behind.items():
        carried.scope_flows[index, scope] = flow(frozen, part)
    if crossing:
        _keep_other(network, index, frozen, scores, behind, wanted, carried.other)
    return arriving


def _keep_other(
    network: FrozenNetwork,
    index: int,
    frozen: FrozenLayer,
    scores: LayerScores,
    behind: dict[str, LayerScores],
    wanted: Wanted,
    other: FromOther,
) -> None:
    """Keep what a layer gives to the other sequence that it reads."""
    ((name, gradient),) = scores.others.items()
    other.gradient = gradient if other.gradient is None else other.gradient + gradient
    other.nodes[index] = (other.gradient * network.sources[name]).sum(-1)
    if wanted.flow and (whole := cross_flow(frozen, scores)) is not None:
        other.flows[index] = whole
    if wanted.heads and (by_head := cross_flow_by_head(frozen, scores)) is not None:
        other.head_flows[index] = by_head
    for scope, part in behind.items():
        if (passing := cross_flow(frozen, part)) is not None:
            other.scope_flows[index, scope] = passing


# Whole vectors of a frozen network: every source is pushed through its layers.
#
# A group of sources passes layer after layer together (`costs.vectors` says how many fit), and
# each layer is frozen once for a group. What no token owns passes with the last group.


#: Called with the part of the work that is done, from 0 to 1.
Advance = Callable[[float], None]
#: Vectors (…, b, m, d) that belong to other sequences, by the names of these.
Others: TypeAlias = Mapping[str, Tensor]


def check_one_sequence(layers: Sequence[Layer]) -> None:
    """Refuse layers that read another sequence, whose tokens would be sources, too."""
    if any(attention.source is not None for layer in layers for attention in layer.attentions):
        raise UnsupportedModelError(
            "vectors are not pushed through layers that read another sequence yet; take "
            "origin='layer'"
        )


class Visitor(Protocol):
    """Takes what it needs of the whole vectors as they pass."""

    def sources(self, layer: int, step: int, sources: Sources) -> None:
        """Some sources' vectors behind a step."""

    def bias(self, layer: int, step: int, bias: Tensor, real: Tensor | None) -> None:
        """What no token owns (b, i, d) behind a step that all sources have passed.

        `real` is the model's own vector there, where it was traced.
        """


def push(
    stacks: Sequence[FrozenNetwork],
    until: int,
    limit: int,
    visitors: Sequence[Visitor],
    advance: Advance | None = None,
    end: FrozenReadout | None = None,
) -> None:
    """Push every token of a batch through the model, and the last stack's layers up to `until`.

    Each stack has its visitor. Behind an encoder, its tokens pass the steps of its `end` and enter
    the decoder's layers.
    """
    *encoders, read = stacks
    y = read.x(0)
    b, n, _ = y.shape
    layers = [one.adapter.layer(visited.block) for one in stacks for visited in one.visited]
    groups = group_sources(VectorSizes.of(layers, b, n, y.itemsize), limit, read.causal)
    passes = Passes(len(groups) * (until + 1), advance)
    no_token: Others | None = None
    for encoder in encoders:
        m = encoder.x(0).shape[1]
        # A token of the source has vectors in both stacks.
        both = VectorSizes.of(layers, b, m + n, y.itemsize)
        of_source = group_sources(both, limit, causal=False, sources=m)
        passes.total += len(of_source) * (len(encoder) + until + 1)
        assert end is not None
        no_token = _push_source(encoder, read, end, until, of_source, visitors, passes)
    for number, group in enumerate(groups):
        chunks = [Sources.at_input(y, first, count, read.causal) for first, count in group]
        is_last = number == len(groups) - 1
        push_group(read, until, chunks, visitors[-1], passes, is_last, unowned=no_token)


def _push_source(
    encoder: FrozenNetwork,
    decoder: FrozenNetwork,
    end: FrozenReadout,
    until: int,
    groups: Sequence[Sequence[tuple[int, int]]],
    visitors: Sequence[Visitor],
    passes: Passes,
) -> Others:
    """Push the source's tokens through both stacks; returns what no token owns of the encoder's.

    By what the tokens k gave to the vectors that the decoder reads they enter each of its layers,
    beside the decoder's own tokens:

        M_k = end(encoder(e_k)),    V_ik = decoder(0, M_k),    V_ij = decoder(e_j, 0)
        Σ_k V_ik + Σ_j V_ij + b_i = x_i                                            (completeness)
    """
    x, y = encoder.x(0), decoder.x(0)
    unowned: Tensor | None = None
    for number, group in enumerate(groups):
        is_last = number == len(groups) - 1
        chunks = [Sources.at_input(x, first, count, causal=False) for first, count in group]
        unowned = push_group(encoder, len(encoder) - 1, chunks, visitors[0], passes, is_last)
        gave = [{ENCODER: end.linear(chunk.vectors)} for chunk in chunks]
        behind = [
            Sources.from_other(chunk.first, given[ENCODER], y)
            for chunk, given in zip(chunks, gave, strict=True)
        ]
        push_group(decoder, until, behind, visitors[-1], passes, False, gave)
    assert unowned is not None
    return {ENCODER: end.linear(unowned) + end.bias}


class Passes:
    """Counts groups that have passed a layer, and tells how far all of them are."""

    def __init__(self, total: int, advance: Advance | None):
        self.done, self.total, self.advance = 0, total, advance

    def one_more(self) -> None:
        self.done += 1
        if self.advance is not None:
            self.advance(self.done / self.total)


def push_group(
    network: FrozenNetwork,
    until: int,
    chunks: list[Sources],
    visitor: Visitor,
    passes: Passes,
    is_last: bool,
    gave: Sequence[Others] = (),
    unowned: Others | None = None,
) -> Tensor | None:
    """Push a group of sources, in place, through the layers up to `until`.

    What no token owns passes with the last group, and is returned. `gave` is what each chunk gave
    to another sequence that layers read, and `unowned` what no token owns of that sequence.
    """
    bias: Tensor | None = None
    for index in range(until + 1):
        frozen = network.layer(index)
        real = network.real

        def seen(step: int, sources: Sources, index: int = index) -> None:
            visitor.sources(index, step, sources)

        for place, chunk in enumerate(chunks):
            chunks[place] = chunk.through(frozen, seen, gave[place] if gave else None)
        if is_last:

            def alone(
                step: int, bias: Tensor, index: int = index, real: dict[int, Tensor] = real
            ) -> None:
                visitor.bias(index, step, bias, real.get(step))

            bias = frozen.unowned(bias, alone, unowned)
        passes.one_more()
    return bias
