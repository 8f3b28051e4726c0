"""Scores: as the model returns them, and carried back from there to its input tokens.

    Σ_k c_k + Σ_{layer, component} bias = s                    (completeness, at every layer)

with ``c_k = g_k · e_k`` of the vectors e_k that enter the first layer. In a decoder every
cross-attention also gives gradients at the vectors that the encoder returned; their sum goes on
through the encoder's end and its layers, and the tokens of both sequences own the score.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only

from normlens.explain.network import FrozenNetwork
from normlens.explain.questions import Question
from normlens.frozen.activations import Nonlinearity, activation
from normlens.frozen.network import FrozenReadout
from normlens.frozen.scores import attentions, layer_flow, layer_scores, scores_behind
from normlens.gpu.transfer import pinned_copy
from normlens.layers import Head
from normlens.pipeline.batches import check_completeness, check_scores
from normlens.pipeline.progress import Progress
from normlens.results.explanation import WHOLE
from normlens.results.words import RES

# Scores as the model itself returns them.


@dataclass(frozen=True)
class ModelScores:
    """What the model returned: scores or vectors of sequences, of all positions, or of some."""

    values: Tensor  # (b, c) or (b, position, c)
    places: list[int] | None  # the positions that are there; None: all of them

    @classmethod
    def of_output(cls, output: Any, places: list[int] | None) -> ModelScores:
        """What a model with a head returned."""
        logits = getattr(output, "logits", None)
        return cls(output.prediction_logits if logits is None else logits, places)

    def of(self, b: int, position: int | None) -> Tensor:
        """The scores of one sequence, at one of its positions where it has several."""
        if self.values.dim() == 2:
            return self.values[b]
        assert position is not None
        return self.values[b, position if self.places is None else self.places.index(position)]

    def of_all(self, positions: Sequence[int | None]) -> Tensor:
        """The scores (b, c) of every sequence, each at one of its positions."""
        return torch.stack([self.of(b, position) for b, position in enumerate(positions)])


def chooses_positions(model: Any) -> bool:
    """Whether a model can be asked for the scores of some positions only.

    A classifier of sequences may take the argument, too, and look for its last token among all.
    """
    kinds = [kind.__name__ for kind in type(model).__mro__]
    of_sequences = any(name.endswith("ForSequenceClassification") for name in kinds)
    return not of_sequences and "logits_to_keep" in inspect.signature(model.forward).parameters


def ask_for_places(
    model: Any, inputs: dict[str, Any], positions: Iterable[int | None]
) -> list[int] | None:
    """Ask a model for the scores of some positions only, if it can choose; returns which."""
    places = sorted({position for position in positions if position is not None})
    if not places or not chooses_positions(model):
        return None
    inputs["logits_to_keep"] = torch.tensor(places, device=inputs["input_ids"].device)
    return places


# Where the way back begins: a score as a linear function of the vectors behind a layer.


@dataclass(frozen=True)
class Start:
    """The gradient at a layer's output, and the biases behind it."""

    gradient: Tensor  # (n, d)
    bias_part: dict[str, float]  # what no token owns behind it, by component
    value: float  # the score by the algebra
    columns: tuple[float, ...]  # the head's scores that it consists of, by the algebra


def start(question: Question, head: Head, last: Tensor, rule: str) -> Start:
    """The beginning of one score's way back from the vectors `last` (n, d) of one sequence.

    `last` is behind layer `question.layer`, or behind the last one.
    """
    gradient = torch.zeros_like(last)
    direction = None if question.direction is None else question.direction.to(last)
    if direction is not None and question.layer is not None:
        assert question.position is not None
        gradient[question.position] = direction
        value = float(last[question.position].double() @ direction.double())
        return Start(gradient, {}, value, ())
    pools = head.pools(question.position, len(last))
    bodies = [FrozenReadout.at(head.body, last[pool], rule) for pool in pools]  # (tokens, d)
    pooled = torch.cat([body.output.mean(0) for body in bodies])
    pooled_bias = torch.cat([body.bias.mean(0) for body in bodies])
    steps = FrozenReadout.at(head.steps, pooled, rule, pooled_bias)
    bias_part: dict[str, float] = {}
    columns: tuple[float, ...] = ()
    if direction is not None:
        weight, value = direction, float(steps.output.double() @ direction.double())
    else:
        weight, bias_part["OUT"], columns = _columns(head, question, steps, rule)
        value = sum(s * score for (_, s), score in zip(question.columns, columns, strict=True))
    g, of_steps = steps.score(weight)
    symbols = [step.symbol for step in (*head.body, *head.steps)]
    names = [
        symbol + (str(symbols[: place + 1].count(symbol)) if symbols.count(symbol) > 1 else "")
        for place, symbol in enumerate(symbols)
    ]
    owed_by: list[tuple[str, Tensor | None]] = []
    for pool, body, share in zip(pools, bodies, g.chunk(len(pools)), strict=True):
        of_pool, of_body = body.score((share / len(body.output)).expand_as(body.output))
        gradient[pool] += of_pool
        owed_by += zip(names, of_body, strict=False)
    owed_by += zip(names[len(head.body) :], of_steps, strict=True)
    for name, owed in owed_by:
        if owed is not None:
            bias_part[name] = bias_part.get(name, 0.0) + float(owed.double().sum())
    return Start(gradient, bias_part, value, columns)


def _columns(
    head: Head, question: Question, steps: FrozenReadout, rule: str
) -> tuple[Tensor, float, tuple[float, ...]]:
    """The weight (d,) and bias of signed scores, and the scores themselves."""
    y, output = steps.output, head.output
    assert output is not None
    chosen = torch.tensor([column for column, _ in question.columns], device=y.device)
    signs = torch.tensor([sign for _, sign in question.columns]).to(y)
    scale = output.scale[chosen].to(y) if isinstance(output.scale, Tensor) else output.scale
    weights = output.weight[:, chosen].to(y) * scale  # (d, c)
    biases = torch.zeros_like(signs)
    if output.bias is not None:
        biases = output.bias[chosen].to(y) * scale
    scores = y @ weights + biases
    slopes, capped = torch.ones_like(scores), scores
    if (cap := head.soft_cap) is not None:
        # c · tanh(z/c): the rule's slope of tanh at z/c.
        of_bias = steps.bias @ weights + biases
        neuron = Nonlinearity(activation("tanh"))
        tanh = neuron.linearised(rule, [scores / cap], [of_bias / cap])
        (slopes,), capped = tanh.slopes, tanh.hidden * cap
    remainder = capped - slopes * (scores - biases)
    weight = weights @ (slopes * signs)
    return weight, float((remainder * signs).double().sum()), tuple(capped.double().tolist())


# The way back, layer by layer.


#: The names of what is kept by head: of ATTN, of CROSS, and their maps.
HEADS, CROSS_HEADS, HEAD_FLOW = "heads", "cross_heads", "head_flow"


@dataclass(frozen=True)
class Passed:
    """What the scores of a batch left behind in one layer; the first two axes are (t, b)."""

    index: int
    stack: int
    errors: dict[str, Tensor]  # of the frozen layer against the model's own vectors, by scope
    nodes: dict[int, Tensor]  # (t, b, j), c of the layer's input and of sequences that wait
    components: dict[str, Tensor]  # (t, b, i)
    bias_part: dict[str, Tensor]  # (t, b, i)
    heads: dict[str, Tensor]  # (t, b, h, i)
    #: (t, b, i, j) by scope, or (t, b, h, i, j); from the layer's own tokens and from the other's
    flows: dict[str, tuple[Tensor, Tensor | None]]


def carry(
    network: FrozenNetwork,
    g: Tensor,
    layer: int | None = None,
    *,
    flow_maps: bool = False,
    by_head: bool = False,
    scopes: Collection[str] = (),
    progress: Progress | None = None,
) -> list[Passed]:
    """Carry gradients g (t, b, n, d) behind a layer, or the last, to the first layer's input.

    Returns what they left behind in each layer, the first one first. Of a GPU it is on the host
    when the GPU is done. Flow maps are kept of layers, of each head, and behind some scopes.
    """
    count = len(network) if layer is None else layer + 1
    way: list[Passed] = []
    nodes: dict[int, Tensor] = {}  # by sequence
    at_encoder: Tensor | None = None  # ∂s/∂(what the decoder reads of the encoder)
    for index in reversed(range(count)):
        stack = network.stack_of(index)
        behind: dict[str, Tensor] = {}
        if stack == 0 and at_encoder is not None:
            end, names = network.encoder_end()
            g, shares = end.score(at_encoder)
            behind = {n: share for n, share in zip(names, shares, strict=True) if share is not None}
            at_encoder = None
        frozen = network.layer(index)
        step_names, scope_of = frozen.layer.step_names, frozen.layer.scope_of_step
        steps = {step: scope for step, scope in scope_of.items() if scope in scopes}
        scores = layer_scores(frozen, g, keep={*steps, *network.real})
        network.compare_scores(frozen, scores)
        g = scores.arriving
        nodes[stack] = (g * frozen.x).sum(-1)
        for name, arrived in scores.others.items():
            at_encoder = arrived if at_encoder is None else at_encoder + arrived
            nodes[0] = (at_encoder * network.sources[name]).sum(-1)
        components = {step_names[step]: share for step, share in scores.ways.items()}
        if scores.residual is not None:
            components[RES] = scores.residual
        (own, _), *_ = attentions(frozen)
        flows: dict[str, tuple[Tensor, Tensor | None]] = {}
        if flow_maps:
            flows[WHOLE] = layer_flow(frozen, scores)
        if by_head:
            flows[HEAD_FLOW] = layer_flow(frozen, scores, by_head=True)
        for step, scope in steps.items():
            part = scores_behind(frozen, scores.gradients[step], step)
            flows[scope] = layer_flow(frozen, part)
        kept = {
            "nodes": dict(nodes),
            "components": components,
            "bias_part": {step_names[s]: share for s, share in scores.bias_part.items()} | behind,
            "heads": {
                HEADS if step == own else CROSS_HEADS: share for step, share in scores.heads.items()
            },
            "flows": flows,
        }
        on_host = tree_map_only(Tensor, pinned_copy, kept)
        way.append(Passed(index, stack, network.errors, **on_host))
        if progress is not None:
            progress(len(way), count)
    return way[::-1]


def check_layers(network: FrozenNetwork, passed: Sequence[Passed]) -> None:
    """Raise where a frozen layer misses the model's own vectors."""
    found = [(layer, scope, error) for layer in passed for scope, error in layer.errors.items()]
    values = torch.stack([error for *_, error in found]).tolist() if found else []
    for (layer, scope, _), value in zip(found, values, strict=True):
        place, words = layer.index - network.firsts[layer.stack], network.layer_words[layer.stack]
        check_completeness([(place, scope, value)], network.lens.dtype, words)


# From what the way back left behind to the arrays of one explanation.


#: The layer of what stands behind the last one.
HEAD = "head"

Array = NDArray[Any]


class Packer:
    """The arrays of one score of a batch, which stands at `place` (t, b).

    The layers of all stacks stand in one list, the encoder's first, and so do the tokens of all
    sequences. The tokens of a stack that does not run in a layer wait: what they carry stays with
    them. So contributions, nodes and flows of an encoder–decoder are complete as those of any model
    are: columns of a flow map sum to what enters a layer, rows and biases to what leaves it.
    """

    def __init__(
        self, network: FrozenNetwork, passed: Sequence[Passed], place: tuple[int, int]
    ) -> None:
        self.network, self.passed, self.place = network, passed, place
        sizes = [lengths[place[1]] for lengths in network.lengths]
        self.tokens = [slice(end - n, end) for n, end in zip(sizes, accumulate(sizes), strict=True)]
        self.total, stacks = sum(sizes), range(len(sizes))
        self.nodes: Array = np.stack(
            [np.concatenate([self._own(each.nodes[k], k) for k in stacks]) for each in passed]
        )

    def fields(self, began: Start, value: float) -> dict[str, Any]:
        """The arrays by their names in an `Explanation`, if they are complete.

        The score that began there is `value`, as the model says.
        """
        biases: list[tuple[int | str, str, float]] = [
            (place, name, float(self._own(share, layer.stack).sum(dtype=np.float64)))
            for place, layer in enumerate(self.passed)
            for name, share in layer.bias_part.items()
        ]
        biases += [(HEAD, name, share) for name, share in began.bias_part.items()]
        errors = _errors(self.nodes, biases, began, value)
        names = [self.network.name_of(layer.index) for layer in self.passed]
        check_scores(errors, self.network.lens.dtype, names)
        # Both stacks' names, the decoder's first; waiting tokens are in RES.
        layers = sorted(self.passed, key=lambda layer: -layer.stack)
        names = list(dict.fromkeys(name for each in layers for name in sorted(each.components)))
        if len(self.tokens) > 1 and RES not in names:
            names.append(RES)
        rows = [{names.index(k): v for k, v in each.components.items()} for each in self.passed]
        components = self._rows(rows, len(names), np.float64)
        for place in range(len(self.passed) if len(self.tokens) > 1 else 0):
            waiting, carried = self._waiting(place)
            components[place, names.index(RES), waiting] = carried
        scopes = dict.fromkeys(name for layer in self.passed for name in layer.flows)
        flows = {name: self._maps(name) for name in scopes}
        return {
            "biases": biases,
            "completeness": max(errors),
            "nodes": self.nodes,
            "component_names": names,
            "components": components,
            HEADS: self._heads(HEADS),
            CROSS_HEADS: self._heads(CROSS_HEADS),
            HEAD_FLOW: flows.pop(HEAD_FLOW, None),
            "flows": flows,
        }

    def _own(self, values: Tensor, stack: int) -> Array:
        """The score's values (…, token) of one stack's tokens, without padding."""
        tokens = self.tokens[stack]
        array: Array = values[self.place][..., : tokens.stop - tokens.start].numpy()
        return array

    def _rows(self, rows: Sequence[Mapping[int, Tensor]], count: int, kind: Any) -> Array:
        """Values (t, b, i) of each layer's rows as an array (layer, row, token), NaN for none."""
        array = np.full((len(rows), count, self.total), np.nan, dtype=kind)
        for own, layer, of_layer in zip(array, self.passed, rows, strict=True):
            for row, share in of_layer.items():
                own[row] = 0
                own[row, self.tokens[layer.stack]] = self._own(share, layer.stack)
        return array

    def _heads(self, name: str) -> Array | None:
        shares = [layer.heads.get(name) for layer in self.passed]
        rows = [{} if each is None else dict(enumerate(each.unbind(2))) for each in shares]
        # One stack keeps the precision of the algebra.
        kind = self.nodes.dtype if len(self.tokens) == 1 else np.float64
        return self._rows(rows, max(map(len, rows)), kind) if any(rows) else None

    def _waiting(self, place: int) -> tuple[Array, Array]:
        """The tokens of the stacks that do not run in a layer, and what they carry past it."""
        tokens = np.delete(np.arange(self.total), self.tokens[self.passed[place].stack])
        # The source's vectors wait until the last layer that reads them.
        last = place + 1 == len(self.passed)
        return tokens, np.zeros(len(tokens)) if last else self.nodes[place + 1, tokens]

    def _maps(self, name: str) -> Array:
        """Maps (layer, …, i, j) of all tokens, NaN where a layer has no map, or no such head."""
        by_layer = [
            [None if block is None else block[self.place].numpy() for block in each.flows[name]]
            if name in each.flows
            else []
            for each in self.passed
        ]
        blocks = [block for of_layer in by_layer for block in of_layer if block is not None]
        heads = [max(map(len, blocks))] if name == HEAD_FLOW else []
        shape = (len(by_layer), *heads, self.total, self.total)
        whole = np.full(shape, np.nan, dtype=blocks[0].dtype)
        for place, (layer, of_layer) in enumerate(zip(self.passed, by_layer, strict=True)):
            rows = self.tokens[layer.stack]
            for block, columns in zip(of_layer, (rows, self.tokens[0]), strict=False):
                if block is None:
                    continue
                into = whole[place, : len(block)] if heads else whole[place]
                if columns is rows:
                    into[:] = 0
                n, m = rows.stop - rows.start, columns.stop - columns.start
                into[..., rows, columns] = block[..., :n, :m]
            if name == WHOLE and len(self.tokens) > 1:
                waiting, carried = self._waiting(place)
                whole[place, waiting, waiting] = carried
        return whole


def _errors(
    nodes: Array, biases: Sequence[tuple[int | str, str, float]], began: Start, value: float
) -> list[float]:
    """How far contributions and biases miss the score at every layer.

    Relative to the largest of the score and its summands: no sum is more exact than its largest
    summand.
    """
    shares = [abs(share) for *_, share in biases]
    scale = max(abs(value), *map(abs, began.columns), *shares, float(np.abs(nodes).max()))
    scale = max(scale, np.finfo(float).tiny)
    behind = sum(share for layer, _, share in biases if layer == HEAD)
    errors = [abs(began.value - value) / scale]
    for layer in reversed(range(len(nodes))):
        behind += sum(share for owner, _, share in biases if owner == layer)
        errors.append(abs(float(nodes[layer].sum(dtype=np.float64)) + behind - value) / scale)
    return errors[::-1]
