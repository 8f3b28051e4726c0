"""One batch through one stack or two and back, packed as the arrays of an explanation."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normlens.explain.network import (
    Carried,
    FrozenNetwork,
    Wanted,
    bring_home,
    carry,
    entering,
    wait_for,
)
from normlens.explain.questions import Start
from normlens.frozen.network import FrozenReadout
from normlens.frozen.scores import Errors
from normlens.inputs.text import Item, pairs_among, sequences_of, texts_among
from normlens.layers import OF_CLASSES, OF_TOKENS, Head, cast
from normlens.models.base import Adapter
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.pipeline.batches import scopes_of
from normlens.pipeline.progress import Progress
from normlens.plan.memory import relative_error
from normlens.results.words import RES
from normlens.scopes import is_among, resolve
from normlens.trace.recorder import LayerTrace
from normlens.trace.run import model_inputs, pair_inputs, run_traced
from normlens.trace.wide_copies import end_in_float32

if TYPE_CHECKING:
    from normlens.lens import Lens


# From what the way back left behind to the arrays of one explanation.


#: The layer of what stands behind the last one.
HEAD = "head"

Array = NDArray[Any]


@dataclass(frozen=True)
class Said:
    """What the model itself says: the score that is explained, and what it consists of."""

    value: float
    columns: tuple[int, ...] = ()  # the target's column, and the contrast's
    scores: tuple[float, ...] = ()
    probabilities: tuple[float, ...] | None = None

    @classmethod
    def of(cls, scores: Tensor, columns: Sequence[tuple[int, float]], head: Head) -> Said:
        """Read from all scores (columns,) of the head."""
        places = [column for column, _ in columns]
        chosen = [float(scores[place]) for place in places]
        value = sum(sign * score for (_, sign), score in zip(columns, chosen, strict=True))
        probabilities = _probabilities(scores, places, head)
        return cls(value, tuple(places), tuple(chosen), probabilities)


def _probabilities(scores: Tensor, places: list[int], head: Head) -> tuple[float, ...] | None:
    """Probabilities where the scores are compared with each other; a regression has none."""
    exclusive = head.task in (*OF_TOKENS, *OF_CLASSES) and head.exclusive
    if len(scores) < 2 or not exclusive:
        return None
    total = torch.logsumexp(scores, 0)
    return tuple(float((scores[place] - total).exp()) for place in places)


@dataclass(frozen=True)
class Packed:
    """The numbers of one explanation.

    The layers of all stacks stand in one list, the encoder's first, and so do the tokens of all
    sequences. The tokens of a stack that does not run in a layer wait: what they carry stays with
    them. So contributions, nodes and flows of an encoder–decoder are complete as those of any model
    are: columns of a flow map sum to what enters a layer, rows and biases to what leaves it.
    """

    nodes: Array  # (layer, position)
    component_names: list[str]
    components: Array  # (layer, component, position), NaN where a layer has no such component
    heads: Array  # (layer, head, position), NaN where a layer has no such head
    bias: list[tuple[int | str, str, float]]  # layer, component, value
    flows: dict[str, Array]  # scope, or "" for the whole layer → (layer, target, source)
    head_flow: Array | None  # (layer, head, target, source), of CROSS between two sequences
    errors: list[float]  # of completeness behind the embeddings, each layer, and at the end
    cross_heads: Array | None = None  # (layer, head, position), of CROSS


@dataclass(frozen=True)
class _Packer:
    """One score t of one item b of a batch."""

    carried: Sequence[Carried]  # by each stack
    t: int
    b: int
    sizes: Sequence[int]  # tokens of each stack's sequence
    until: int  # the last stack's layer behind which the score is read

    def packed(self, began: Start, value: float) -> Packed:
        """The numbers of the score, which the model says is `value`."""
        nodes, bias = self._nodes(), self._bias(began)
        names, components = self._components(nodes)
        # One stack keeps the precision of the algebra.
        kind = nodes.dtype if len(self.carried) == 1 else np.dtype(float)
        crossing = [carried.other.heads for carried in self.carried]
        return Packed(
            nodes=nodes,
            component_names=names,
            components=components,
            heads=self._heads([carried.heads for carried in self.carried], kind),
            bias=bias,
            flows=self._flows(nodes),
            head_flow=self._stacked(
                [carried.head_flows for carried in self.carried],
                [carried.other.head_flows for carried in self.carried],
            ),
            errors=_errors(nodes, bias, began, value),
            cross_heads=self._heads(crossing, kind) if any(crossing) else None,
        )

    @cached_property
    def layers(self) -> list[tuple[int, int]]:
        """The stack of every layer, and the layer's place in it."""
        counts = [*(len(carried.nodes) for carried in self.carried[:-1]), self.until + 1]
        return [(stack, layer) for stack, count in enumerate(counts) for layer in range(count)]

    def _tokens(self, stack: int) -> slice:
        """Where a stack's tokens stand among all."""
        first = sum(self.sizes[:stack])
        return slice(first, first + self.sizes[stack])

    def _own(self, values: Tensor, stack: int) -> Array:
        """The score's values (…, token) of one stack's tokens, without padding."""
        return numbers(values[self.t, self.b, ..., : self.sizes[stack]])

    def _nodes(self) -> Array:
        """(layer, token): what each vector that enters a layer carries, or that waits for it."""
        nodes = []
        for stack, layer in self.layers:
            here = self.carried[stack]
            entering = [here.other.nodes[layer] for _ in range(stack)]
            entering.append(here.nodes[layer])
            entering += [later.nodes[0] for later in self.carried[stack + 1 :]]
            nodes.append(np.concatenate([self._own(v, k) for k, v in enumerate(entering)]))
        return np.stack(nodes)

    def _bias(self, began: Start) -> list[tuple[int | str, str, float]]:
        bias: list[tuple[int | str, str, float]] = [
            (place, name, float(self._own(share, stack).sum(dtype=np.float64)))
            for place, (stack, layer) in enumerate(self.layers)
            for (owner, name), share in self.carried[stack].unowned.items()
            if owner == layer
        ]
        return bias + [(HEAD, name, share) for name, share in began.unowned.items()]

    def _components(self, nodes: Array) -> tuple[list[str], Array]:
        found = [key for carried in reversed(self.carried) for key in sorted(carried.components)]
        names = list(dict.fromkeys(name for _, name in found))
        if len(self.carried) > 1 and RES not in names:
            names.append(RES)  # of the tokens that wait
        components = np.full((len(self.layers), len(names), sum(self.sizes)), np.nan)
        for place, (stack, layer) in enumerate(self.layers):
            for row, name in zip(components[place], names, strict=True):
                if (share := self.carried[stack].components.get((layer, name))) is not None:
                    row[:] = 0
                    row[self._tokens(stack)] = self._own(share, stack)
                if name == RES:
                    tokens, carried = self._waiting(place, nodes)
                    row[tokens] = carried
        return names, components

    def _heads(self, by_stack: Sequence[Mapping[int, Tensor]], kind: np.dtype[Any]) -> Array:
        count = max(share.shape[2] for shares in by_stack for share in shares.values())
        heads = np.full((len(self.layers), count, sum(self.sizes)), np.nan, dtype=kind)
        for place, (stack, layer) in enumerate(self.layers):
            if (share := by_stack[stack].get(layer)) is not None:
                own = heads[place, : share.shape[2]]
                own[:] = 0
                own[:, self._tokens(stack)] = self._own(share, stack)
        return heads

    def _waiting(self, place: int, nodes: Array) -> tuple[Array, Array]:
        """The tokens of the stacks that do not run in a layer, and what they carry past it."""
        tokens = np.delete(np.arange(sum(self.sizes)), self._tokens(self.layers[place][0]))
        # The source's vectors wait until the last layer that reads them.
        last = place + 1 == len(self.layers)
        return tokens, np.zeros(len(tokens)) if last else nodes[place + 1, tokens]

    def _flows(self, nodes: Array) -> dict[str, Array]:
        """Flow maps [layer, target, source] of whole layers ("") and behind scopes."""
        flows: dict[str, Array] = {}
        own, crossing = ([c.flows for c in self.carried], [c.other.flows for c in self.carried])
        if (whole := self._stacked(own, crossing)) is not None:
            for place in range(len(self.layers)):
                waiting, behind = self._waiting(place, nodes)
                whole[place, waiting, waiting] = behind
            flows[""] = whole
        scopes = (scope for carried in self.carried for _, scope in carried.scope_flows)
        for scope in dict.fromkeys(scopes):
            own = [_at(carried.scope_flows, scope) for carried in self.carried]
            crossing = [_at(carried.other.scope_flows, scope) for carried in self.carried]
            if (behind_scope := self._stacked(own, crossing)) is not None:
                flows[scope] = behind_scope
        return flows

    def _stacked(
        self, own: Sequence[Mapping[int, Tensor]], crossing: Sequence[Mapping[int, Tensor]]
    ) -> Array | None:
        """Maps (layer, …, i, j) of all tokens; None if no layer has one.

        They are of each stack's `own` tokens, and of a stack `crossing` to the one before it. NaN
        where a layer has no map, or no such head.
        """
        maps = [self._map(own[stack], crossing[stack], stack, n) for stack, n in self.layers]
        found = [each for each in maps if each is not None]
        if not found:
            return None
        shape = max(each.shape for each in found)
        empty = found[0].new_full(shape, math.nan)

        def filled(each: Tensor | None) -> Tensor:
            if each is None or each.shape == shape:
                return empty if each is None else each
            return torch.cat([each, empty[len(each) :]])

        # By torch, whose threads share the work: most of it is the system's, fresh pages for the
        # array.
        return numbers(torch.stack([filled(each) for each in maps]))

    def _map(
        self, own: Mapping[int, Tensor], crossing: Mapping[int, Tensor], stack: int, layer: int
    ) -> Tensor | None:
        """One layer's map (…, i, j) of all tokens; None if the layer has none."""
        n = self.sizes[stack]
        if layer not in own:
            return None
        here = own[layer][self.t, self.b, ..., :n, :n]
        if len(self.carried) == 1:
            return here
        rows = self._tokens(stack)
        blocks = [(here, rows)]
        if layer in crossing:
            m = self.sizes[stack - 1]
            crossed = crossing[layer][self.t, self.b, ..., :n, :m]
            blocks.append((crossed, self._tokens(stack - 1)))
        heads = [max(len(block) for block, _ in blocks)] if here.dim() == 3 else []
        whole = here.new_zeros(*heads, sum(self.sizes), sum(self.sizes))
        for block, columns in blocks:
            into = whole[: len(block)] if heads else whole
            into[..., rows, columns] = block
        return whole


def _at(maps: Mapping[tuple[int, str], Tensor], scope: str) -> dict[int, Tensor]:
    return {layer: flow for (layer, name), flow in maps.items() if name == scope}


def _errors(
    nodes: Array, bias: Sequence[tuple[int | str, str, float]], began: Start, value: float
) -> list[float]:
    """How far contributions and biases miss the score at every layer.

    Relative to the largest of the score and its summands: no sum is more exact than its largest
    summand.
    """
    scale = max(
        [abs(value), *map(abs, began.columns), *(abs(share) for _, _, share in bias)],
        default=0.0,
    )
    scale = max(scale, float(np.abs(nodes).max(initial=0.0)), np.finfo(float).tiny)
    behind = sum(share for layer, _, share in bias if layer == HEAD)
    errors = [abs(began.value - value) / scale]
    for layer in reversed(range(len(nodes))):
        behind += sum(share for owner, _, share in bias if owner == layer)
        errors.append(abs(float(nodes[layer].sum(dtype=np.float64)) + behind - value) / scale)
    return errors[::-1]


def numbers(tensor: Tensor) -> Array:
    """A tensor's numbers on the host."""
    array: Array = tensor.detach().cpu().numpy()
    return array


# One batch on its way through a model's stacks and back.
#
# The way back goes from the last layer to the first. In a decoder every cross-attention also gives
# gradients at the vectors that the encoder returned; their sum goes on through the encoder's end
# and its layers:
#
#     Σ_k c_k (source) + Σ_j c_j (prefix) + Σ_{stack, layer, component} bias = s


class BatchRun:
    """A batch of sequences, or of sources and targets, in one stack of layers or in two.

    Scores are read behind the last stack. Each has its own sequence of an item.
    """

    def __init__(self, lens: Lens, batch: Sequence[Item], rule: str, kept_bytes: int):
        self.lens, self.batch = lens, batch
        firsts = {"": 0}
        if isinstance(lens.adapter, TwoStacks):
            firsts = {ENCODER: 0, DECODER: len(lens.adapter.encoder_blocks())}
        items = [[len(sequence) for sequence in sequences_of(item)] for item in batch]
        self.tokens = max(map(sum, items))  # of the longest item
        lengths = [list(each) for each in zip(*items, strict=True)]
        self.stacks = [
            FrozenNetwork(
                lens.adapter,
                own,
                rule,
                lens.compute_dtype,
                kept_bytes // len(firsts),
                source_lengths={ENCODER: lengths[0]} if name == DECODER else {},
                layer_in_words=f"{name} layer" if name else "layer",
                first=first,
                guard=lens.guard,
            )
            for (name, first), own in zip(firsts.items(), lengths, strict=True)
        ]
        self.carried: list[Carried] = []  # by each stack

    @property
    def read(self) -> FrozenNetwork:
        """The stack behind whose layers scores are read."""
        return self.stacks[-1]

    @property
    def layer_names(self) -> list[str]:
        """How errors call the layers that the model has run."""
        return [f"{one.layer_in_words} {index}" for one in self.stacks for index in range(len(one))]

    def afresh(self) -> BatchRun:
        """The same batch as the model has run it, with nothing carried back."""
        other = copy.copy(self)
        other.stacks, other.carried = [replace(one, errors={}) for one in self.stacks], []
        return other

    def inputs(self) -> dict[str, Tensor]:
        """What the model is called with."""
        lens, pairs = self.lens, pairs_among(self.batch)
        if pairs:
            return pair_inputs(lens.adapter, pairs, lens.device, lens.dtype)
        return model_inputs(lens.adapter, texts_among(self.batch), lens.device)

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Run the model once; return its output."""

        def visit(trace: LayerTrace) -> None:
            stack = next(one for one in reversed(self.stacks) if trace.index >= one.first)
            stack.visit(replace(trace, index=trace.index - stack.first))

        layers = range(self.lens.n_layers)
        output = run_traced(self.lens.adapter, model, inputs, layers, visit)
        for stack in self.stacks:
            stack.compare()
        return output

    def in_float32(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Any, Adapter, Errors]:
        """What the model, which has run, returns in float32 from the last layer's vectors on.

        Also an adapter of that copy, and how far frozen steps between stacks miss what it computes.
        """
        returned = {block: what for one in self.stacks for block, what in one.returned.items()}
        output, adapter = end_in_float32(self.lens.adapter, model, inputs, returned)
        return output, adapter, self._end_errors(adapter, output)

    def _end_errors(self, adapter: Adapter, output: Any) -> Errors:
        """How far the frozen steps behind an encoder miss what the model computes."""
        for encoder in self.stacks[:-1]:
            assert encoder.last is not None
            end, own = self.encoder_end(adapter)[0], output.encoder_last_hidden_state
            last, lengths = encoder.last.to(own), encoder.lengths
            what = "the steps behind the encoder"
            yield what, float(relative_error(end.linear(last) + end.bias, own, lengths))
            # A score is read at each token in the direction of its own vector.
            g, unowned = end.score(own)
            score = (g * last).sum(-1) + sum(share for share in unowned if share is not None)
            size = own.square().sum(-1)
            yield what, float(relative_error(score[..., None], size[..., None], lengths))

    def encoder_end(self, adapter: Adapter | None = None) -> tuple[FrozenReadout, list[str]]:
        """The frozen steps between the encoder's last layer and what the decoder reads.

        `adapter` is that of a copy of the model, if theirs are asked for.
        """
        encoder, described = self.stacks[0], adapter or self.lens.adapter
        assert encoder.last is not None
        assert isinstance(described, TwoStacks)
        with torch.no_grad():
            steps = [cast(step, encoder.dtype) for step in described.encoder_end()]
        readout = FrozenReadout.at(steps, encoder.last.to(encoder.dtype), encoder.rule)
        return readout, [f"END {step.symbol}" for step in steps]

    def carry(
        self,
        starts: Sequence[Sequence[Start]],
        flow: bool,
        heads: bool,
        scopes: Sequence[str],
        progress: Progress | None,
    ) -> None:
        """Carry the scores `starts`[t][b] back, and keep what is asked for on the way."""
        gradients, chosen = entering(starts), self._chosen(scopes)
        depth, passed = self.read.first + max(gradients) + 1, count(1)

        def advance() -> None:
            if progress is not None:
                progress(next(passed), depth)

        self.carried = []
        for stack, of_stack in reversed(list(zip(self.stacks, chosen, strict=True))):
            stack.errors.clear()
            unowned: dict[tuple[int, str], Tensor] = {}
            if self.carried:  # what the decoder has given to the encoder's last vectors
                g = self.carried[0].other.gradient
                assert g is not None
                end, names = self.encoder_end()
                g, shares = end.score(g)
                last = len(stack) - 1
                gradients = {last: g}
                unowned = {
                    (last, name): share
                    for name, share in zip(names, shares, strict=True)
                    if share is not None
                }
            carried = carry(stack, gradients, Wanted(flow, heads, of_stack), advance)
            carried.unowned |= unowned
            self.carried.insert(0, carried)
        for carried in self.carried:
            bring_home(carried)

    def _chosen(self, names: Sequence[str]) -> list[frozenset[str]]:
        """The scopes that are meant in each stack; one that none has is an error."""
        layers = self.lens.layers
        available = [scopes_of(layers[one.first : one.first + len(one)]) for one in self.stacks]
        for name in names:
            if not any(is_among(name, scopes) for scopes in available):
                resolve(name, self.lens.scopes)  # raises, and lists them all
        return [
            frozenset(resolve(name, scopes) for name in names if is_among(name, scopes))
            for scopes in available
        ]

    def wait(self) -> None:
        """Wait for what was carried last."""
        wait_for(self.lens.device)

    def pack(self, t: int, b: int, began: Start, value: float) -> Packed:
        """The numbers of score t of item b, which were carried last; the model says `value`."""
        sizes = [stack.lengths[b] for stack in self.stacks]
        return _Packer(self.carried, t, b, sizes, began.layer).packed(began, value)

    def check(self, dtype: torch.dtype) -> None:
        """Raise where a frozen layer misses the model's own vectors."""
        for stack in self.stacks:
            stack.check(dtype)
