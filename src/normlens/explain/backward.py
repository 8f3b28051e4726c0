"""Scores: as the model returns them, and carried back from there to its input tokens.

    Σ_k c_k + Σ_{layer, component} bias = s                    (completeness, at every layer)

with ``c_k = g_k · e_k`` of the vectors e_k that enter the first layer. In a decoder every
cross-attention also gives gradients at the vectors that the encoder returned; their sum goes on
through the encoder's end and its layers, and the tokens of both sequences own the score.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only

from normlens.errors import NormLensWarning
from normlens.explain.network import FrozenHead, FrozenNetwork, answer_score
from normlens.explain.questions import Question
from normlens.explain.whole_vectors import text_vector
from normlens.frozen.parts import plus
from normlens.frozen.scores import attentions, layer_flow, layer_scores
from normlens.gpu.transfer import pinned_copy
from normlens.layers import OF_CLASSES, OF_TOKENS, SENTENCES, Head
from normlens.options import LOG_PROBABILITY
from normlens.pipeline.batches import Progress, check_completeness, check_scores
from normlens.results.explanation import WHOLE
from normlens.results.words import RES, percent

# Scores as the model itself returns them.


def chooses_positions(model: Any) -> bool:
    """Whether a model can be asked for the scores of some positions only.

    A classifier of sequences may take the argument, too, and look for its last token among all.
    """
    kinds = [kind.__name__ for kind in type(model).__mro__]
    of_sequences = any(name.endswith("ForSequenceClassification") for name in kinds)
    return not of_sequences and "logits_to_keep" in inspect.signature(model.forward).parameters


def ask_for_places(
    model: Any, inputs: dict[str, Any], positions: Iterable[int | slice | None]
) -> list[int] | None:
    """Ask a model for the scores of some positions only, if it can choose; returns which."""
    chosen = (p if isinstance(p, slice) else slice(p, p + 1) for p in positions if p is not None)
    places = sorted({place for span in chosen for place in range(span.start, span.stop)})
    if not places or not chooses_positions(model):
        return None
    inputs["logits_to_keep"] = torch.tensor(places, device=inputs["input_ids"].device)
    return places


def rows_read(
    output: Any, places: list[int] | None, asked: Iterable[tuple[int, int | slice | None]]
) -> list[Tensor]:
    """The scores (c,), or (t, c) of a slice, of sequences and positions in what a model returned.

    That is (b, c) or (b, position, c), of all positions or of those in `places`.
    """
    logits = getattr(output, "logits", None)
    logits = output.prediction_logits if logits is None else logits
    rows = []
    for b, position in asked:
        place = position
        if places is not None and isinstance(position, slice):  # its positions are all there
            first = places.index(position.start)
            place = slice(first, first + position.stop - position.start)
        elif places is not None and isinstance(position, int):
            place = places.index(position)
        rows.append(logits[b] if logits.dim() == 2 else logits[b, place])
    return rows


# Where the backward pass begins: a score as a linear function of the vectors behind a layer.


@dataclass(frozen=True)
class Seed:
    """One question's number, and the gradient with which its backward pass begins."""

    question: Question  # with the target that the model chose, if it was to choose
    value: float  # the number, as the model itself says it
    gradient: Tensor  # (n, d) at the output of the layer that it is read behind
    bias_part: dict[str, float]  # what no token owns behind that layer, by component
    by_algebra: float  # the number
    columns: Sequence[float] = ()  # the head's scores that it consists of, by the algebra
    scores: Sequence[float] = ()  # the same, as the model says them: the target's, the contrast's
    probabilities: Sequence[float] = ()  # of both, where scores exclude each other
    log_probability: float | None = None  # of an answer


def seed_of(question: Question, head: Head, last: Tensor, row: Tensor, rule: str) -> Seed:
    """The gradient of one score at the vectors `last` (n, d) of one sequence.

    They are behind layer `question.layer`, or behind the last one. `row` is what the model itself
    returned: scores (c,), or its vectors (i, d) there if the head has no output.
    """
    if question.answer:
        return _answer_seed(question, head, last, row, rule)
    frozen = FrozenHead(head, last, rule, question.position)
    if question.direction is not None:
        direction = question.direction.to(last)
        by_algebra = float(frozen.steps.output.double() @ direction.double())
        is_pooled = head.task == SENTENCES
        row = text_vector(head, row[: len(last)].to(last)) if is_pooled else row[question.position]
        value = float(row.double() @ question.direction.to(row.device, torch.float64))
        return Seed(question, value, *frozen.score(direction), by_algebra)
    row = row.double()
    _warn_of_spellings(question, row)
    if question.target is None:
        question = replace(question, target=int(row.argmax()))
    weight, bias, columns = frozen.columns(question.columns)
    gradient, bias_part = frozen.score(weight)
    chosen = [column for column, _ in question.columns]
    signs = [sign for _, sign in question.columns]
    scores, probabilities = row[chosen].tolist(), list[float]()
    # A regression has none, nor have scores that are not compared with each other.
    if head.task in (*OF_TOKENS, *OF_CLASSES) and head.exclusive and len(row) > 1:
        probabilities = (row[chosen] - torch.logsumexp(row, 0)).exp().tolist()
    value, by_algebra = (float(np.dot(signs, each)) for each in (scores, columns))
    bias_part = {"OUT": bias, **bias_part}
    return Seed(question, value, gradient, bias_part, by_algebra, columns, scores, probabilities)


def _warn_of_spellings(question: Question, row: Tensor) -> None:
    """Say so where a word is another token, with a space or in another case, that is likelier."""
    likely = torch.log_softmax(row, 0)
    by_word: dict[str, tuple[float, str, float]] = {}
    for word, column, other, place in question.spellings:
        if max(column, place) >= len(row):
            continue
        before, found = float(likely[column]), float(likely[place])
        if found > max(before, by_word.get(word, (before,))[0]):
            by_word[word] = found, other, before
    for word, (found, other, before) in by_word.items():
        warnings.warn(
            f"{word!r} is explained ({percent(math.exp(before))}), and the model finds {other!r} "
            f"likelier ({percent(math.exp(found))}), which is another token; give {other!r} if "
            "that was meant",
            NormLensWarning,
            stacklevel=2,
        )


def _answer_seed(question: Question, head: Head, last: Tensor, rows: Tensor, rule: str) -> Seed:
    """The gradient of an answer's score, at all of its positions; `rows` are (t, c)."""
    rows = rows.double()
    each = torch.arange(len(question.answer), device=rows.device)
    ids = torch.tensor(question.answer, device=rows.device)
    likely = torch.log_softmax(rows, -1)
    coefficients = torch.zeros_like(rows)
    if question.score == LOG_PROBABILITY:
        coefficients -= likely.exp()
    coefficients[each, ids] += 1
    gradient, bias_part, scores = answer_score(head, last, question.positions, coefficients, rule)
    value, by_algebra = (float((coefficients * all_).sum()) for all_ in (rows, scores.double()))
    columns = scores[each, ids].double().tolist()
    total = float(likely[each, ids].sum())
    chosen = [float(np.exp(total))]
    return Seed(question, value, gradient, bias_part, by_algebra, columns, (), chosen, total)


# The backward pass, layer by layer.


#: The names of what is kept by head: of ATTN, of CROSS, and their maps.
HEADS, CROSS_HEADS, HEAD_FLOW = "heads", "cross_heads", "head_flow"


#: Values of a layer's own tokens, and of maps those from the other sequence, if it reads one.
Blocks = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Passed:
    """What the scores of a batch left behind in one layer; the first two axes are (t, b)."""

    index: int
    stack: int
    errors: dict[str, Tensor]  # of the frozen layer against the model's own vectors, by scope
    nodes: dict[int, Tensor]  # (t, b, j), c of the layer's input and of sequences that wait
    bias_part: dict[str, Tensor]  # (t, b, i)
    components: dict[str, Blocks]  # (t, b, i)
    heads: dict[str, Blocks]  # (t, b, h, i), by `HEADS` and `CROSS_HEADS`
    flows: dict[str, Blocks]  # (t, b, i, j) by scope, or (t, b, h, i, j)
    edges: tuple[Tensor, ...] = ()  # places in a flow map (t, b, edge), values, Σ |flow| (t, b)


def carry(
    network: FrozenNetwork,
    g: Tensor,
    layer: int | None = None,
    *,
    flow_maps: bool | int = False,
    by_head: bool = False,
    scopes: Collection[str] = (),
    progress: Progress | None = None,
) -> list[Passed]:
    """Carry gradients g (t, b, n, d) behind a layer, or the last, to the first layer's input.

    Returns what they left behind in each layer, the first one first. Of a GPU it is on the host
    when the GPU is done. Flow maps are kept of layers, of each head, and behind some scopes; a
    number keeps so many edges of a layer's map.
    """
    count = len(network) if layer is None else layer + 1
    way: list[Passed] = []
    state = Carried(g)
    for index in reversed(range(count)):
        way.append(_carry_layer(network, index, state, flow_maps, by_head, scopes))
        if progress is not None:
            progress(len(way), count)
    return way[::-1]


@dataclass
class Carried:
    """The gradients that have come so far, and what they say of each sequence."""

    g: Tensor  # (t, b, n, d) at the output of the layer that is next
    at_encoder: Tensor | None = None  # ∂s/∂(what the decoder reads of the encoder)
    nodes: dict[int, Tensor] = field(default_factory=dict)  # by sequence


def _carry_layer(
    network: FrozenNetwork,
    index: int,
    state: Carried,
    flow_maps: bool | int,
    by_head: bool,
    scopes: Collection[str],
) -> Passed:
    """Carry the gradients through one layer, of which nothing but the result stays in memory."""
    stack = network.stack_of[index]
    bias_part: dict[str, Tensor] = {}
    if stack == 0 and state.at_encoder is not None:
        end, names = network.encoder_end()
        state.g, shares = end.score(state.at_encoder)
        bias_part = {n: s for n, s in zip(names, shares, strict=True) if s is not None}
        state.at_encoder = None
    frozen = network.layer(index)
    step_names, scope_of = frozen.layer.step_names, frozen.layer.scope_of_step
    steps = {step: scope for step, scope in scope_of.items() if scope in scopes}
    scores = layer_scores(frozen, state.g, keep={*steps, *network.real})
    network.compare_scores(frozen, scores)
    network.real = {}
    if not (flow_maps or by_head or steps):  # of a long text they are what memory is short of
        scores.gradients.clear()
        scores.at_heads.clear()
    state.g = scores.arriving
    state.nodes[stack] = (state.g * frozen.x).sum(-1)
    for name, arrived in scores.others.items():
        state.at_encoder = plus(arrived, state.at_encoder)
        state.nodes[0] = (state.at_encoder * network.sources[name]).sum(-1)
    components = {step_names[step]: (share,) for step, share in scores.ways.items()}
    if scores.residual is not None:
        components[RES] = (scores.residual,)
    (own, _), *_ = attentions(frozen)
    flows: dict[str, Blocks] = {}
    edges: tuple[Tensor, ...] = ()
    if flow_maps is True:
        flows[WHOLE] = layer_flow(frozen, scores)
    elif flow_maps:
        sizes = layer_flow(frozen, scores)[0].flatten(-2)
        places = sizes.abs().topk(min(flow_maps, sizes.shape[-1])).indices
        edges = places, sizes.gather(-1, places), sizes.abs().sum(-1)
    if by_head:
        flows[HEAD_FLOW] = layer_flow(frozen, scores, by_head=True)
    for step, scope in steps.items():
        part = layer_scores(frozen, scores.gradients[step], last=step)
        flows[scope] = layer_flow(frozen, part)
    kept = {
        "nodes": dict(state.nodes),
        "bias_part": {step_names[s]: b for s, b in scores.bias_part.items()} | bias_part,
        "components": dict(sorted(components.items())),
        "heads": {
            HEADS if step == own else CROSS_HEADS: (share,) for step, share in scores.heads.items()
        },
        "flows": flows,
        "edges": edges,
    }
    return Passed(index, stack, network.errors, **tree_map_only(Tensor, pinned_copy, kept))


def check_layers(network: FrozenNetwork, passed: Sequence[Passed]) -> None:
    """Raise where a frozen layer misses the model's own vectors."""
    for layer in passed:
        place, words = layer.index - network.firsts[layer.stack], network.layer_words[layer.stack]
        values = torch.stack([*layer.errors.values()]).tolist() if layer.errors else []
        errors = [(place, *each) for each in zip(layer.errors, values, strict=True)]
        check_completeness(errors, network.lens.dtype, words)


# From what the backward pass left behind to the arrays of one explanation.


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

    def __init__(self, network: FrozenNetwork, passed: Sequence[Passed], place: tuple[int, int]):
        self.network, self.passed, self.place = network, passed, place
        ends = [*accumulate(lengths[place[1]] for lengths in network.real_lengths)]
        self.tokens = [*map(slice, [0, *ends], ends)]  # of each stack
        self.total = ends[-1]

    def fields(self, seed: Seed) -> dict[str, Any]:
        """The arrays by their names in an `Explanation`, if they are complete."""
        layers, two = self.passed, len(self.tokens) > 1
        nodes = np.stack(
            [
                np.concatenate([self._own(layer.nodes[k], k) for k in range(len(self.tokens))])
                for layer in layers
            ]
        )
        biases: list[tuple[int | str, str, float]] = [
            (place, name, float(self._own(share, layer.stack).sum(dtype=np.float64)))
            for place, layer in enumerate(layers)
            for name, share in layer.bias_part.items()
        ]
        biases += [(HEAD, name, share) for name, share in seed.bias_part.items()]
        components = self._arrays("components", 1, np.float64)
        # One stack keeps the precision of the algebra.
        heads = self._arrays("heads", 1, np.float64 if two else None)
        flows = self._arrays("flows", 2)
        if two:
            components.setdefault(RES, np.full(nodes.shape, np.nan))
        for place, layer in enumerate(layers if two else ()):
            # The source's vectors wait until the last layer that reads them.
            waiting = np.delete(np.arange(self.total), self.tokens[layer.stack])
            carried = nodes[place + 1, waiting] if place + 1 < len(layers) else 0
            components[RES][place, waiting] = carried
            if WHOLE in flows:
                flows[WHOLE][place, waiting, waiting] = carried
        edges: dict[str, Array] = {}
        if layers[0].edges:
            places, values, totals = (
                np.stack([each[self.place].numpy() for each in column])
                for column in zip(*(layer.edges for layer in layers), strict=True)
            )
            ends = np.divmod(places, max(self.network.lengths[-1]))
            edges = {"edges": np.stack(ends, -1), "edge_values": values, "edge_totals": totals}
        return {
            "biases": biases,
            **edges,
            "completeness": self._completeness(seed, nodes, biases),
            "nodes": nodes,
            "component_names": list(components),
            "components": np.stack(list(components.values()), axis=1),
            HEAD_FLOW: flows.pop(HEAD_FLOW, None),
            "flows": flows,
            **heads,
        }

    def _own(self, values: Tensor, stack: int) -> Array:
        """The score's values (…, token) of one stack's tokens, without padding."""
        tokens = self.tokens[stack]
        array: Array = values[self.place][..., : tokens.stop - tokens.start].numpy()
        return array

    def _arrays(self, kind: str, axes: int, dtype: Any = None) -> dict[str, Array]:
        """Values of every layer by name, the decoder's first, with 1 or 2 `axes` of all tokens.

        Of shape (layer, …, i) or (layer, …, i, j). NaN: a layer has none, or no such head; 0:
        tokens of a stack that waits.
        """
        arrays: dict[str, Array] = {}
        order = sorted(self.passed, key=lambda layer: -layer.stack)
        for name in dict.fromkeys(chain.from_iterable(getattr(layer, kind) for layer in order)):
            found = [
                [
                    block[self.place].numpy()
                    for block in getattr(layer, kind).get(name, ())
                    if block is not None
                ]
                for layer in self.passed
            ]
            present = [*chain.from_iterable(found)]
            heads = max(values.shape for values in present)[:-axes]
            shape = len(found), *heads, *[self.total] * axes
            array = arrays[name] = np.full(shape, np.nan, dtype or present[0].dtype)
            for into, layer, blocks in zip(array, self.passed, found, strict=True):
                rows = self.tokens[layer.stack]
                for values, columns in zip(blocks, (rows, self.tokens[0]), strict=False):
                    here = into[: len(values)] if heads else into
                    if values is blocks[0]:
                        here[:] = 0
                    n, m = rows.stop - rows.start, columns.stop - columns.start
                    own = (..., slice(n), slice(m))[: axes + 1]
                    here[(..., rows, columns)[: axes + 1]] = values[own]
        return arrays

    def _completeness(
        self, seed: Seed, nodes: Array, biases: Sequence[tuple[int | str, str, float]]
    ) -> float:
        """How far contributions and biases miss the score at the layer where they do so most.

        Relative to the largest of the score and its summands: no sum is more exact than its largest
        summand.
        """
        owed = np.zeros(len(nodes) + 1)  # by each layer, and by what stands behind the last
        for layer, _, share in biases:
            owed[-1 if isinstance(layer, str) else layer] += share
        behind = owed[::-1].cumsum()[::-1]
        totals = np.append(nodes.sum(1, dtype=np.float64) + behind[:-1], seed.by_algebra)
        shares = [share for *_, share in biases]
        sizes = np.abs([seed.value, *seed.columns, *shares, np.abs(nodes).max()])
        scale = max(sizes.max(), np.finfo(float).tiny)
        errors = (np.abs(totals - seed.value) / scale).tolist()
        names = [self.network.name_of(layer.index) for layer in self.passed]
        check_scores(errors, self.network.lens.dtype, names)
        return max(errors)
