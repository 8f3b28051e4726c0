"""Whole vectors: every token pushed through the frozen layers; maps and texts' vectors of them.

    V^0_ik = δ_ik e_k,        Σ_k V^ℓ_ik + b^ℓ_i = x^ℓ_i                         (completeness)

A group of sources passes layer after layer together (`costs.group_sources` says how many fit), and
each layer is frozen once for a group. Maps of ‖V^ℓ_ik‖ have the model's input tokens as sources,
and are held as one layer's own maps are (`LayerMaps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.explain.network import FrozenHead, FrozenNetwork, check_one_sequence
from normlens.frozen import norm_maps
from normlens.frozen.activations import activation
from normlens.frozen.network import Sources, WholeNorms
from normlens.frozen.parts import relative_error
from normlens.frozen.scores import Errors
from normlens.inputs.text import Encoded
from normlens.layers import SENTENCES, Dense, Elementwise, Head, HeadStep, Layer, Reach
from normlens.models.parts import ENCODER
from normlens.options import DEFAULT_LIMIT, CosineOptions, parse_bytes
from normlens.pipeline import batches
from normlens.pipeline.batches import Progress, by_layers
from normlens.pipeline.collector import Collector
from normlens.plan.costs import VectorSizes, check_vectors_limit, group_sources
from normlens.trace.checks import Checks
from normlens.trace.locking import exclusive
from normlens.trace.run import LayerTrace, model_inputs, reading

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass
class WholeMaps:
    """What is kept of the vectors that pass: norms, and sums until they are compared."""

    network: FrozenNetwork
    scopes: Mapping[tuple[int, int], str]  # that are asked for, by layer and step
    maps: dict[int, norm_maps.LayerMaps] = field(default_factory=dict)  # by layer
    passing: dict[tuple[int, int], WholeNorms] = field(default_factory=dict)

    def sources(self, layer: int, step: int, sources: Sources) -> None:
        """Take some sources' vectors behind a step."""
        if (layer, step) not in self.scopes:
            return
        if (layer, step) not in self.passing:
            others = self.network.x(0).shape[1] if self.network.stack_of[layer] else 0
            whole = WholeNorms.empty(self.network.x(layer), others, sources.vectors.shape[-1])
            self.passing[layer, step] = whole
        self.passing[layer, step].add(sources)

    def bias(self, layer: int, step: int, bias: Tensor) -> None:
        """Take what no token owns (b, i, d) behind a step that all sources have passed."""
        if (layer, step) not in self.scopes:
            return
        scope, whole = self.scopes[layer, step], self.passing.pop((layer, step))
        maps = self.maps.setdefault(layer, norm_maps.LayerMaps())
        maps.norms[scope] = whole.norms
        maps.mixing[scope] = whole.mixing()
        if step in self.network.real:
            lengths = self.network.lengths[self.network.stack_of[layer]]
            maps.completeness[scope] = whole.error(bias, self.network.real[step], lengths)


def push(
    network: FrozenNetwork,
    until: int,
    limit: int,
    visitor: WholeMaps,
    advance: Callable[[float], None] | None = None,
) -> Iterator[tuple[list[Sources], Tensor | None]]:
    """Push every token of a batch through the model; yields who arrives behind layer `until`.

    Behind an encoder, its tokens k pass the steps of its end and enter each of the decoder's
    layers, beside the decoder's own tokens j:

        M_k = end(encoder(e_k)),    V_ik = decoder(0, M_k),    V_ij = decoder(e_j, 0)
        Σ_k V_ik + Σ_j V_ij + b_i = x_i                                            (completeness)

    What no token owns of a stack passes its layers with the last group, and arrives with it.
    `advance` is called with the part of the work that is done.
    """
    inputs = [network.x(first) for first in network.firsts]
    last = len(inputs) - 1
    behind = network.firsts[last]  # the first layer of the last stack
    causal = all(ran.layer.reach.ahead == 0 for ran in network.visited[behind:])
    groups = []  # of chunks, each with its stack
    for stack, x in enumerate(inputs):
        # A token of a source has vectors in both stacks.
        targets = sum(each.shape[1] for each in inputs[stack:])
        sizes = VectorSizes.of(network.lens.layers, len(x), targets, x.itemsize)
        found = group_sources(sizes, limit, causal and stack == last, x.shape[1])
        groups += [(stack, group, group is found[-1]) for group in found]
    total = sum(max(0, until + 1 - network.firsts[stack]) for stack, *_ in groups)
    done, no_token = 0, dict[str, Tensor]()
    for stack, group, is_last in groups:
        x, bias = inputs[stack], None
        chunks = [Sources.at_input(x, k, count, causal and stack == last) for k, count in group]
        gave: list[dict[str, Tensor]] = [{} for _ in chunks]
        for index in range(network.firsts[stack], until + 1):
            if stack < last and index == behind:
                end = network.encoder_end()[0]
                gave = [{ENCODER: end.linear(chunk.vectors)} for chunk in chunks]
                chunks = [
                    Sources.from_other(chunk.first, given[ENCODER], inputs[last])
                    for chunk, given in zip(chunks, gave, strict=True)
                ]
                if bias is not None:
                    no_token = {ENCODER: end.linear(bias) + end.bias}
            frozen = network.layer(index)
            for place, chunk in enumerate(chunks):
                chunks[place] = chunk.through(frozen, partial(visitor.sources, index), gave[place])
            if is_last and network.stack_of[index] == stack:
                bias = frozen.bias_part(bias, partial(visitor.bias, index), no_token)
            done += 1
            if advance is not None:
                advance(done / total)
        yield chunks, bias if stack == last else None


def collect_whole_way(
    lens: Lens,
    runs: Sequence[Collector],
    batch: Sequence[Encoded],
    inputs: dict[str, Tensor],
    progress: Progress | None,
) -> None:
    """Run the model on a batch and add the maps that are asked for to its stacks' collectors."""
    last = runs[-1].stack
    limit = last.options.limit
    network = FrozenNetwork(lens, batch, last.options.nonlinearity, limit)
    scopes = {
        (run.stack.first + index, step): scope
        for run in runs
        for index in run.stack.chosen
        for step, scope in run.stack.layers[index].scope_of_step.items()
        if scope in run.stack.scopes
    }
    whole = WholeMaps(network, scopes)
    advance = by_layers(progress, sum(len(run.stack.chosen) for run in runs))

    def check(trace: LayerTrace) -> None:
        for run in runs:
            if run.stack.first == network.firsts[network.stack_of[trace.index]]:
                place, layer = trace.index - run.stack.first, trace.layer.to(network.dtype)
                run.checks.add(replace(trace, index=place, layer=layer))

    def compute() -> None:
        with reading(lens.model, lens.adapter):
            network.forward(lens.model, inputs)
            for _ in push(network, last.first + max(last.chosen), limit, whole, advance):
                pass  # the maps have taken what they need

    network.watch = check
    exclusive(lens.model, compute)
    layers = [ran.layer for ran in network.visited]
    for run in runs:
        for index in run.stack.chosen:
            place = run.stack.first + index
            passed = layers[run.stack.first : place + 1]
            reach = reduce(Reach.then, [layer.reach for layer in passed])
            maps = whole.maps.get(place, norm_maps.LayerMaps())
            run.add(maps, index, Layer(layers[place].steps, reach))


# A text's vector as a sum over its tokens: u = Σ_k u_k + b_u.
#
# Each input token is pushed through the frozen layers, the pooling and the steps behind it.


@dataclass(frozen=True)
class SentenceParts:
    """One text's vector u, and what it consists of."""

    tokens: NDArray[np.float64]  # u_k (k, d)
    bias: NDArray[np.float64]  # b_u (d,)
    vector: NDArray[np.float64]  # u (d,), from what the model itself returned

    def times(self, factor: Any) -> SentenceParts:
        """The same with every number of the vector multiplied."""
        return SentenceParts(self.tokens * factor, self.bias * factor, self.vector * factor)

    @classmethod
    def empty(cls, tokens: int) -> SentenceParts:
        """A vector of no numbers."""
        return cls(np.zeros((tokens, 0)), np.zeros(0), np.zeros(0))

    def at(self, columns: slice | NDArray[np.int64]) -> SentenceParts:
        """Some of the vector's numbers."""
        return SentenceParts(self.tokens[:, columns], self.bias[columns], self.vector[columns])


@dataclass(frozen=True)
class FrozenReading:
    """What is read of a text's last vectors, frozen: a vector u, linear in them."""

    linear: Callable[[Tensor], Tensor]  # of vectors (…, n, d), without biases: (…, d)
    bias: Tensor  # (d,), what the steps behind the last layer add
    vector: Tensor  # (d,), from what the model itself returned


#: From a text's vectors behind the last layer, the model's own output of it, and a rule.
Reading: TypeAlias = Callable[[Tensor, Tensor, str], FrozenReading]


def pooled(head: Head) -> Reading:
    """Read a text's one vector, as `head` pools it."""

    def read(last: Tensor, own: Tensor, rule: str) -> FrozenReading:
        exact = head.to(last.dtype)
        frozen = FrozenHead(exact, last, rule)
        return FrozenReading(frozen.linear, frozen.steps.bias, text_vector(exact, own))

    return read


def text_vector(head: Head, output: Tensor) -> Tensor:
    """A text's vector from the model's own output (i, d), which has no padding."""
    (pool,) = head.pools(None, len(output))
    return through_steps(head.steps, output[pool].mean(0))


def through_steps(steps: Sequence[HeadStep], y: Tensor) -> Tensor:
    """What the steps behind the pooling make of a vector (…, d)."""
    for step in steps:
        if isinstance(step, Dense):
            y = F.linear(y, step.linear.weight.T, step.linear.bias)
        else:
            assert isinstance(step, Elementwise)
            y = activation(step.activation).value(y)
    return y


def sentence_parts(
    lens: Lens,
    readings: Sequence[Reading],
    batch: Sequence[Encoded],
    rule: str,
    limit: int,
    progress: Progress | None = None,
) -> list[SentenceParts]:
    """Run the model on a batch once and push every token through it; each text has its reading."""
    check_one_sequence(lens)
    dtype = lens.compute_dtype
    network = FrozenNetwork(lens, batch, rule, limit)
    (lengths,) = network.lengths
    checks = Checks(lens.adapter, lens.dtype, lengths)
    network.watch = lambda traced: checks.add(replace(traced, layer=traced.layer.to(dtype)))

    def run() -> list[SentenceParts]:
        with reading(lens.model, lens.adapter):
            inputs = model_inputs(lens.adapter, batch, lens.device)
            own = network.forward(lens.model, inputs).last_hidden_state.to(dtype)
            compare = partial(_pooling_errors, network, readings, inputs)
            lens.float32_check.once(rule, SENTENCES, "the pooling", compare)
            last = network.behind()
            ends = zip(readings, last, own, lengths, strict=True)
            frozen = [read(x[:n], y[:n], rule) for read, x, y, n in ends]
            layers = enumerate(lens.layers)
            scopes = {(k, len(layer.steps) - 1): layer.scopes[-1] for k, layer in layers}
            maps, until = WholeMaps(network, scopes), len(network) - 1
            advance = by_layers(progress, len(network))
            shares: list[list[Tensor]] = [[] for _ in frozen]  # of some sources (k, d) each
            no_token: list[Tensor] = []  # (d,) each
            for arrived, bias in push(network, until, limit, maps, advance):
                for b, end in enumerate(frozen):
                    for sources in arrived:
                        # Earlier targets hold nothing of them.
                        vectors = F.pad(sources.vectors[:, b], (0, 0, sources.since, 0))
                        shares[b].append(end.linear(vectors))
                    if bias is not None:
                        no_token.append(end.linear(bias[b]) + end.bias)
        checks.judge()
        for index, one in maps.maps.items():
            errors = [(index, scope, float(error)) for scope, error in one.completeness.items()]
            batches.check_completeness(errors, lens.dtype)
        parts = []
        for b, n in enumerate(lengths):
            tensors = torch.cat(shares[b])[:n], no_token[b], frozen[b].vector
            parts.append(SentenceParts(*(tensor.double().cpu().numpy() for tensor in tensors)))
        return parts

    return exclusive(lens.model, run)


def _pooling_errors(
    network: FrozenNetwork, readings: Sequence[Reading], inputs: dict[str, Any]
) -> Errors:
    """How far frozen vectors of texts miss those that the model gives in float32."""
    output = network.in_float32(network.lens.model, inputs)
    for b, (read, n) in enumerate(zip(readings, network.lengths[0], strict=True)):
        last = network.behind()[b, :n].float()
        end = read(last, output.last_hidden_state[b, :n], network.rule)
        total, own = end.linear(last) + end.bias, end.vector
        yield "a text's vector", float(relative_error(total[None, None], own[None, None], [1]))


def parts_of_texts(
    lens: Lens,
    readings: Sequence[Reading],
    texts: list[Encoded],
    options: CosineOptions,
    progress: Progress | None = None,
) -> list[SentenceParts]:
    """What the vector of every text consists of; each text has its reading."""
    lengths = [len(text) for text in texts]
    limit = parse_bytes(options.memory_limit) or DEFAULT_LIMIT
    if options.memory_limit is not None:
        check_vectors_limit(limit, lens.layers, lengths, lens.compute_dtype.itemsize)
    size = batches.vector_batch(lens, max(lengths, default=1), options.batch_size, limit)
    parts: dict[int, SentenceParts] = {}
    for places in batches.batches(lens, texts, size):
        batch = [texts[place] for place in places]
        chosen = [readings[place] for place in places]
        done = sentence_parts(lens, chosen, batch, options.nonlinearity, limit, progress)
        parts |= zip(places, done, strict=True)
    return [parts[place] for place in range(len(texts))]
