"""Cosines of two texts: each text's vector as a sum over tokens, and the matrix of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import CompletenessError, InputError
from normlens.explain.batch_run import BatchRun
from normlens.explain.network import KEPT_SHARE, FrozenNetwork, check_one_sequence, push
from normlens.frozen.activations import activation
from normlens.frozen.network import FrozenReadout, Sources
from normlens.frozen.scores import Errors
from normlens.inputs.text import Encoded
from normlens.layers import FIRST, LAST, MEAN, Dense, Elementwise, Head, HeadStep, Layer
from normlens.loading.sentences import Pooling
from normlens.options import AUTO, CosineOptions, parse_bytes
from normlens.pipeline.batches import (
    SCORE_TOLERANCE,
    affordable,
    batches,
    check_completeness,
    provenance,
    vector_batch,
)
from normlens.pipeline.progress import Progress, by_layers
from normlens.plan.memory import DEFAULT_LIMIT, relative_error
from normlens.plan.method import check_vectors_limit
from normlens.results.axes import TokenAxis
from normlens.results.cosine import Cosine
from normlens.trace.checks import Checks
from normlens.trace.locking import alone_with_model
from normlens.trace.run import reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens


# A text's vector as a sum over its tokens: u = Σ_k u_k + b_u.
#
# Each input token is pushed through the frozen layers, the pooling and the steps behind it.


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
    way = BatchRun(lens, batch, rule, limit // KEPT_SHARE)
    network = way.read
    network.watch = lambda traced: checks.add(traced, traced.layer.to(dtype))

    def run() -> list[SentenceParts]:
        with without_autocast(lens.device), reading(lens.model, lens.adapter):
            inputs = way.inputs()
            output = way.forward(lens.model, inputs)
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
                lambda: _pooling_errors(way, head, inputs),
            )
            end = _End.of(network, pooled)
            advance = by_layers(progress, len(network))
            push([network], len(network) - 1, limit, [end], advance)
            vectors = [text_vector(one.head, own[b, : one.n]) for b, one in enumerate(pooled)]
        checks.judge()
        end.check(lens.layers, lens.dtype)
        return [one.parts(vector) for one, vector in zip(pooled, vectors, strict=True)]

    return alone_with_model(lens.model, run)


def _pooling_errors(run: BatchRun, head: Head, inputs: dict[str, Any]) -> Errors:
    """How far frozen vectors of texts miss those that the model gives in float32."""
    output, adapter, _ = run.in_float32(run.lens.model, inputs)
    network = run.read
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


# Cosines of two texts, shared out among pairs of their tokens.
#
# cos(u, v) = ( Σ_kl u_k·v_l + Σ_k u_k·b_v + Σ_l b_u·v_l + b_u·b_v ) / (‖u‖ ‖v‖)


def text_pairs(a: Any, b: Any) -> tuple[list[tuple[str, str]], bool]:
    """The pairs of texts that a call is about, and whether they were given as a list."""
    many = b is None
    pairs = list(a) if many and isinstance(a, (list, tuple)) else [(a, b)]
    if many and not isinstance(a, list):
        raise InputError("cosine takes two texts, cosine(a, b), or a list of pairs of texts")
    for pair in pairs:
        if not (
            isinstance(pair, (tuple, list))
            and len(pair) == 2
            and all(isinstance(text, str) for text in pair)
        ):
            raise InputError(f"cosine takes two texts, or a list of pairs of texts, not {pair!r}")
    return [(first, second) for first, second in pairs], many


def check_texts(pairs: Sequence[tuple[str, str]], pooling: Pooling) -> None:
    """Refuse texts that the sentence encoder would change before it reads them."""
    if pooling.lower_case and any(text != text.lower() for pair in pairs for text in pair):
        raise InputError(
            "this sentence encoder puts its texts into lower case first (do_lower_case); pass them "
            "in lower case"
        )


def cosines(
    lens: Lens,
    pooling: Pooling,
    encoded: Sequence[tuple[Encoded, Encoded]],
    options: CosineOptions,
    progress: Progress | None = None,
) -> list[Cosine]:
    """The cosine of every pair. A text that comes several times is run once."""
    head = pooling.head(lens.adapter.end(), lens.device)
    texts = {_key(text): text for pair in encoded for text in pair}
    parts = parts_of_texts(lens, head, list(texts.values()), options, progress)
    found = dict(zip(texts, parts, strict=True))
    return [
        _cosine(lens, head, pooling, a, b, found[_key(a)], found[_key(b)], options)
        for a, b in encoded
    ]


def _key(text: Encoded) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(text.ids), tuple(text.type_ids or ())


def parts_of_texts(
    lens: Lens,
    head: Head,
    texts: list[Encoded],
    options: CosineOptions,
    progress: Progress | None = None,
) -> list[SentenceParts]:
    """What the vector of every text consists of, as `head` pools it."""
    lengths = [len(text) for text in texts]
    limit = parse_bytes(options.memory_limit) or DEFAULT_LIMIT
    if options.memory_limit is not None:
        check_vectors_limit(limit, lens.layers, lengths, lens.compute_dtype.itemsize)
    longest = max(lengths, default=1)
    size = options.batch_size
    wanted = affordable(lens, longest) if size == AUTO else int(size)
    size = vector_batch(lens, longest, wanted, limit)
    parts: dict[int, SentenceParts] = {}
    for places in batches(lens, texts, size):
        batch = [texts[place] for place in places]
        done = sentence_parts(lens, head, batch, options.nonlinearity, limit, progress)
        parts |= dict(zip(places, done, strict=True))
    return [parts[place] for place in range(len(texts))]


def _cosine(
    lens: Lens,
    head: Head,
    pooling: Pooling,
    a: Encoded,
    b: Encoded,
    u: SentenceParts,
    v: SentenceParts,
    options: CosineOptions,
) -> Cosine:
    size = float(np.linalg.norm(u.vector) * np.linalg.norm(v.vector))
    if not size > 0:
        raise InputError("one of the texts has a vector of length 0, so there is no cosine")
    value = float(u.vector @ v.vector) / size
    matrix = u.tokens @ v.tokens.T / size
    a_with_bias, b_with_bias = u.tokens @ v.bias / size, v.tokens @ u.bias / size
    bias = float(u.bias @ v.bias) / size
    total = float(matrix.sum() + a_with_bias.sum() + b_with_bias.sum()) + bias
    error, tolerance = abs(total - value), SCORE_TOLERANCE[lens.dtype]
    if not error <= tolerance:
        raise CompletenessError(
            f"the parts of the cosine miss the model's own by {error:.1e}, tolerance "
            f"{tolerance:.0e} for {str(lens.dtype).removeprefix('torch.')}; the model may differ "
            "from its family"
        )
    return Cosine(
        value=value,
        matrix=matrix,
        a_with_bias=a_with_bias,
        b_with_bias=b_with_bias,
        bias=bias,
        a=_tokens(a),
        b=_tokens(b),
        text_a=_text(a),
        text_b=_text(b),
        completeness=error,
        provenance=_provenance(lens, head, _note(head, pooling, a, b), options, error),
    )


def _note(head: Head, pooling: Pooling, *texts: Encoded) -> str | None:
    """What to know about how the vectors of these texts were made."""
    limit = pooling.max_tokens
    cut = None
    if limit is not None and any(len(text) > limit for text in texts):
        cut = f"sentence-transformers would cut texts after {limit} tokens; here they are whole"
    return "; ".join(filter(None, [head.note, cut])) or None


def _tokens(text: Encoded) -> TokenAxis:
    return TokenAxis(text.tokens, text.ids, text.special, text.words, text.word_labels)


def _text(text: Encoded) -> str | None:
    return text.text if isinstance(text.text, str) else None


def _provenance(
    lens: Lens, head: Head, note: str | None, options: CosineOptions, completeness: float
) -> dict[str, Any]:
    said = provenance(lens, options.nonlinearity, completeness, SCORE_TOLERANCE[lens.dtype])
    said["pooling"] = head.reads
    return said if note is None else said | {"note": note}
