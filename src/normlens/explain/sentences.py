"""A text's vector as a sum over its tokens: u = Σ_k u_k + b_u.

Each input token is pushed through the frozen layers, the pooling and the steps behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.advancing import Progress, by_layers
from normlens.analysing.verdicts import check_completeness
from normlens.components import Layer
from normlens.decomposition.activations import activation
from normlens.decomposition.completeness import relative_error
from normlens.decomposition.faces import Errors
from normlens.decomposition.readout import FrozenReadout
from normlens.decomposition.vectors import Sources
from normlens.explain.network import KEPT_SHARE, FrozenNetwork
from normlens.explain.vectors import check_one_sequence, push
from normlens.heads import FIRST, LAST, MEAN, Dense, Elementwise, Head, HeadStep
from normlens.text import Encoded
from normlens.tracing.checks import Checks
from normlens.tracing.model_inputs import model_inputs, without_autocast
from normlens.tracing.trace import reading
from normlens.tracing.turns import alone_with_model
from normlens.tracing.wide_copies import end_in_float32

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class SentenceParts:
    """One text's vector u, and what it consists of."""

    tokens: NDArray[np.float64]  # u_k (k, d)
    bias: NDArray[np.float64]  # b_u (d,)
    vector: NDArray[np.float64]  # u (d,), from what the model itself returned


def tokens_read(reads: str, n: int) -> slice:
    """Which of a text's n last vectors are pooled."""
    return {MEAN: slice(0, n), FIRST: slice(0, 1), LAST: slice(n - 1, n)}[reads]


def text_vector(head: Head, output: Tensor) -> Tensor:
    """A text's vector from the model's own output (i, d), which has no padding."""
    return through_steps(head.steps, output[tokens_read(head.reads, len(output))].mean(0))


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
    head: Head,
    batch: Sequence[Encoded],
    rule: str,
    limit: int,
    progress: Progress | None = None,
) -> list[SentenceParts]:
    """Run the model on a batch once and push every token through it."""
    check_one_sequence(lens.layers)
    dtype, lengths = lens.compute_dtype, [len(sequence) for sequence in batch]
    checks = Checks(lens.adapter, lens.dtype, lengths)
    network = FrozenNetwork(
        lens.adapter,
        lengths,
        rule,
        dtype,
        limit // KEPT_SHARE,
        watch=lambda traced: checks.add(traced, traced.layer.to(dtype)),
        guard=lens.guard,
    )

    def run() -> list[SentenceParts]:
        with without_autocast(lens.device), reading(lens.model, lens.adapter):
            inputs = model_inputs(lens.adapter, batch, lens.device)
            output = network.run(lens.model, inputs)
            own = output.last_hidden_state.to(dtype)
            assert network.last is not None
            pooled = [
                _Pooled.at(head.to(dtype), b, n, network.last.to(dtype), rule)
                for b, n in enumerate(lengths)
            ]
            lens.guard.once(
                rule,
                head.task,
                "the pooling",
                lambda: _pooling_errors(lens, network, head, inputs),
            )
            end = _End.of(network, pooled)
            push(network, len(network) - 1, limit, end, by_layers(progress, len(network)))
            vectors = [text_vector(one.head, own[b, : one.n]) for b, one in enumerate(pooled)]
        checks.judge()
        end.check(lens.layers, lens.dtype)
        return [one.parts(vector) for one, vector in zip(pooled, vectors, strict=True)]

    return alone_with_model(lens.model, run)


def _pooling_errors(
    lens: Lens, network: FrozenNetwork, head: Head, inputs: dict[str, Any]
) -> Errors:
    """How far frozen vectors of texts miss those that the model gives in float32."""
    output, adapter = end_in_float32(lens.adapter, lens.model, inputs, network.returned)
    assert network.last is not None
    last = network.last.float()
    wide = replace(head, body=tuple(adapter.end())).to(torch.float32)
    for b, n in enumerate(network.lengths):
        own = text_vector(wide, output.last_hidden_state[b, :n])
        way = _Pooled.at(wide, b, n, last, network.rule)
        total = way.share(last) + way.steps.bias
        yield "a text's vector", float(relative_error(total[None, None], own[None, None], [1]))


@dataclass
class _Pooled:
    """The way from one sequence's last vectors to its one, frozen, and what has passed it."""

    head: Head
    place: int  # in the batch
    tokens: slice  # those that are read
    n: int
    body: FrozenReadout
    steps: FrozenReadout
    shares: list[Tensor] = field(default_factory=list)  # each (k, d)
    bias: Tensor | None = None  # (d,)

    @classmethod
    def at(cls, head: Head, place: int, n: int, last: Tensor, rule: str) -> _Pooled:
        """The way at the real vectors `last` (b, i, d) behind the last layer."""
        tokens = tokens_read(head.reads, n)
        body = FrozenReadout.at(head.body, last[place, tokens], rule)
        steps = FrozenReadout.at(head.steps, body.output.mean(0), rule, body.bias.mean(0))
        return cls(head, place, tokens, n, body, steps)

    def share(self, vectors: Tensor) -> Tensor:
        """What the way makes of vectors (…, b, i, d), without any bias, (…, d)."""
        return self.steps.linear(
            self.body.linear(vectors[..., self.place, self.tokens, :]).mean(-2)
        )

    def parts(self, vector: Tensor) -> SentenceParts:
        assert self.bias is not None
        tokens = torch.cat(self.shares)[: self.n]
        arrays = [tensor.double().cpu().numpy() for tensor in (tokens, self.bias, vector)]
        return SentenceParts(*arrays)


@dataclass
class _End:
    """Takes what arrives behind the last layer, and compares every layer's end with the model's."""

    network: FrozenNetwork
    pooled: Sequence[_Pooled]
    last_steps: dict[int, int]  # of every layer
    totals: dict[int, Tensor] = field(default_factory=dict)  # Σ_k V_ik behind a layer (b, i, d)
    errors: dict[int, Tensor] = field(default_factory=dict)  # by layer

    @classmethod
    def of(cls, network: FrozenNetwork, pooled: Sequence[_Pooled]) -> _End:
        layers = [network.adapter.layer(visited.block) for visited in network.visited]
        steps = {index: len(layer.steps) - 1 for index, layer in enumerate(layers)}
        return cls(network, pooled, steps)

    def sources(self, layer: int, step: int, sources: Sources) -> None:
        if step != self.last_steps[layer]:
            return
        if layer not in self.totals:
            self.totals[layer] = torch.zeros_like(self.network.x(layer))
        self.totals[layer][:, sources.since :] += sources.vectors.sum(0)
        if layer == len(self.network) - 1:
            whole = F.pad(sources.vectors, (0, 0, sources.since, 0))  # earlier targets hold nothing
            for one in self.pooled:
                one.shares.append(one.share(whole))

    def bias(self, layer: int, step: int, bias: Tensor, real: Tensor | None) -> None:
        if step != self.last_steps[layer]:
            return
        total = self.totals.pop(layer) + bias
        if real is not None:
            self.errors[layer] = relative_error(total, real, self.network.lengths)
        if layer == len(self.network) - 1:
            for one in self.pooled:
                one.bias = one.share(bias) + one.steps.bias

    def check(self, layers: Sequence[Layer], dtype: torch.dtype) -> None:
        """Raise where tokens and bias miss what the model computed behind a layer."""
        errors = [
            (index, layers[index].scopes[-1], float(error)) for index, error in self.errors.items()
        ]
        check_completeness(errors, dtype)
