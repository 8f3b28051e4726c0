"""The frozen network: the layers of a model that has run, frozen when needed, and its head.

What freezing needs is kept from the forward pass where it is small. Where it is not, only each
layer's input is, and the model runs the layer again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
from normlens.frozen.activations import Nonlinearity, activation
from normlens.frozen.attention import QueryKey
from normlens.frozen.layer import FrozenLayer, freeze
from normlens.frozen.network import FrozenReadout
from normlens.frozen.parts import plus, relative_error
from normlens.frozen.scores import VECTORS, Errors, LayerScores
from normlens.gpu.matmul import splits
from normlens.inputs.text import Encoded
from normlens.layers import Head, HeadStep, cast
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.options import DEFAULT_LIMIT
from normlens.pipeline.comparisons import Seen, end_in_float32
from normlens.trace.checks import check_fast_attention, check_tokens
from normlens.trace.run import LayerTrace, run_again, run_traced

if TYPE_CHECKING:
    from normlens.lens import Lens


#: The share of the memory limit that attention weights may take; the rest is for the backward pass.
KEPT_SHARE = 8
#: What a GPU keeps of a text, beside what its model takes there.
MODEL_SHARE = 0.8


def check_one_sequence(lens: Lens) -> None:
    """Refuse layers that read another sequence, whose tokens would have to be followed, too."""
    if any(layer.others for layer in lens.layers):
        raise UnsupportedModelError(
            f"the layers of {lens.name} read another sequence, whose tokens would own a part of "
            "the result, too; only encoder–decoders (normlens.models.parts.TwoStacks) are "
            "followed through both, in maps and explanations: take origin='layer'"
        )


class FrozenNetwork:
    """A model's layers, frozen at one batch; an encoder's come first.

    Each stack of layers has its own sequence of an item. Scores are read behind the last stack.
    `limit` is that of all intermediate results, in bytes.
    """

    def __init__(self, lens: Lens, batch: Sequence[Encoded], rule: str, limit: int | None):
        self.lens, self.rule, self.dtype = lens, rule, lens.compute_dtype
        stacks = zip(*(item.sequences for item in batch), strict=True)
        self.lengths = [[*map(len, sequences)] for sequences in stacks]  # by stack
        self.real_lengths = self.lengths  # without padding up to a size that texts share
        self.texts, self.tokens = len(batch), max(map(sum, zip(*self.lengths, strict=True)))
        self.kept_bytes = self._room(limit)  # that weights and vectors inside layers may still take
        self.firsts, self.layer_words = [0], ["layer"]  # by stack
        if isinstance(lens.adapter, TwoStacks):
            self.firsts = [0, len(lens.adapter.encoder_blocks())]
            self.layer_words = [f"{ENCODER} layer", f"{DECODER} layer"]
        else:
            check_one_sequence(lens)
        before = self.firsts[-1]
        self.stack_of = [0] * before + [len(self.firsts) - 1] * (lens.n_layers - before)  # by layer
        #: The layers that the model has run, without alphas and vectors where those are not kept.
        self.visited: list[LayerTrace] = []
        self.sources: dict[str, Tensor] = {}  # other sequences (b, k, d) that layers read, by name
        self.watch: Callable[[LayerTrace], object] | None = None  # is shown every layer that ran
        # Of the layer that was frozen last: the model's own vectors, and what misses them by scope.
        self.real: dict[int, Tensor] = {}
        self.errors: dict[str, Tensor] = {}

    def _room(self, limit: int | None) -> int:
        """How many bytes may be kept beside the layers' inputs, of which none is given up."""
        lens = self.lens
        width = max(layer.width for layer in lens.layers)
        inputs = lens.n_layers * self.texts * self.tokens * width * lens.dtype.itemsize
        if limit is not None or lens.device.type != "cuda":
            return (limit or DEFAULT_LIMIT) // KEPT_SHARE
        model = sum(parameter.nbytes for parameter in lens.model.parameters())
        if torch.cuda.is_current_stream_capturing():
            return model // 2
        reserved = torch.cuda.memory_reserved(lens.device)
        idle = reserved - torch.cuda.memory_allocated(lens.device)
        free = torch.cuda.mem_get_info(lens.device)[0] + idle
        return int(min(MODEL_SHARE * model, free / 2)) - inputs

    def __len__(self) -> int:
        return len(self.visited)

    def name_of(self, index: int) -> str:
        """What errors call a layer."""
        stack = self.stack_of[index]
        return f"{self.layer_words[stack]} {index - self.firsts[stack]}"

    def forward(self, model: nn.Module, inputs: dict[str, Any], face: str = VECTORS) -> Any:
        """Run the model once, compare its layers with float32 where that is due; its output.

        `face` is what will be read of the frozen layers.
        """
        output = run_traced(
            self.lens.adapter, model, inputs, range(self.lens.n_layers), self._visit, rows=False
        )
        kept: dict[Hashable, Seen] = {}
        for index, ran in enumerate(self.visited):
            lengths = self.lengths[self.stack_of[index]]
            seen = Seen(index, self.name_of(index), ran.block, ran.call, lengths)
            self.lens.float32_check.keep(kept, self.rule, face, seen)
        self.lens.float32_check.layers(self.rule, face, kept)
        return output

    def _visit(self, trace: LayerTrace) -> None:
        """Keep what the backward pass needs of a layer that the model has run."""
        adapter, stack = self.lens.adapter, self.stack_of[trace.index]
        place = trace.index - self.firsts[stack]
        last = self.visited[-1].output if place > 0 else trace.x
        if trace.x.data_ptr() != last.data_ptr() and not torch.equal(trace.x, last):
            outside = adapter.outside_scopes()
            raise UnsupportedModelError(
                f"the model changes its vectors between layers {place - 1} and {place}, which no "
                f"layer describes{f' ({outside})' if outside else ''}; scores cannot be carried "
                "through that"
            )
        check_tokens(adapter, trace, self.lengths[stack])
        check_fast_attention(trace)
        if self.watch is not None:
            self.watch(trace)
        for name, vectors in trace.sources.items():
            if name not in self.sources:  # all layers read the same
                self.sources[name] = vectors.detach().to(self.dtype)
        trace = replace(trace, output=trace.output.detach())
        kept = sum(alpha.nbytes for alpha in trace.alphas)
        if any(isinstance(alpha, QueryKey) for alpha in trace.alphas):
            # Vectors are no longer small beside what stands for the weights.
            kept += sum(vectors.nbytes for vectors in trace.real.values())
            if trace.index == 0 and self.kept_bytes < kept * self.lens.n_layers // 2:
                self.kept_bytes = 0  # few layers save less time than their memory is worth
        self.kept_bytes -= kept
        if self.kept_bytes < 0:
            trace = replace(trace, alphas=(), real={}, sources={})
        self.visited.append(trace)

    def x(self, index: int) -> Tensor:
        """The input (b, i, d) of one layer, in the algebra's precision."""
        return self.visited[index].x.to(self.dtype)

    def behind(self, index: int | None = None) -> Tensor:
        """The output (b, i, d) of one layer, or of the last, in the algebra's precision."""
        return self.visited[-1 if index is None else index].output.to(self.dtype)

    def layer(self, index: int) -> FrozenLayer:
        """One layer, frozen, and compared with what the model computed."""
        trace, lengths = self.visited[index], self.lengths[self.stack_of[index]]
        if not trace.alphas:
            trace = run_again(self.lens.adapter, index, trace.block, trace.call)
        layer = trace.layer.to(self.dtype, split=True)
        real = self.real = trace.real
        self.errors = {}

        def compare(step: int, y: Tensor) -> None:
            if step in real:
                error = relative_error(y, real[step], lengths)
                self._note(layer.scope_of_step[step], error)

        return freeze(
            layer,
            trace.x.to(self.dtype),
            [
                alpha if isinstance(alpha, Tensor) and splits(alpha) else alpha.to(self.dtype)
                for alpha in trace.alphas
            ],
            lengths,
            self.rule,
            sources=self.sources,
            parts=False,
            real=real,
            source_lengths={ENCODER: self.lengths[0]},
            observe=compare,
        )

    def compare_scores(self, frozen: FrozenLayer, scores: LayerScores) -> None:
        """Note how far blocks, whose output was taken from the model, miss it where scores read it.

        An error e of the output y_i, in no special direction, moves a score by ``g_i · e``, about
        ``‖g_i‖ ‖e‖ / √d``: so the root mean square of ``√d (g_i · e) / (‖g_i‖ ‖y_i‖)`` is about
        ``‖e‖ / ‖y_i‖``.
        """
        steps, misses, sizes = list[int](), list[Tensor](), list[Tensor]()
        for step, passed in scores.passed.items():
            if step in self.real:
                g, y = scores.gradients[step], self.real[step]
                missed = (g * y).sum(-1) - plus(passed, scores.bias_part.get(step))
                size = torch.linalg.vector_norm(y, dim=-1, dtype=g.dtype)
                sizes.append(torch.linalg.vector_norm(g, dim=-1) * size)
                misses.append(missed * math.sqrt(y.shape[-1]))
                steps.append(step)
        if not steps:
            return
        size = torch.stack(sizes).flatten(1)
        relative = torch.where(size > 0, torch.stack(misses).flatten(1) / size, 0)
        mean = relative.square().sum(-1) / (size > 0).sum(-1).clamp_min(1)
        for step, error in zip(steps, mean.sqrt().nan_to_num(nan=float("inf")), strict=True):
            self._note(frozen.layer.scope_of_step[step], error)

    def _note(self, scope: str, error: Tensor) -> None:
        self.errors[scope] = torch.maximum(error, self.errors.get(scope, error))

    def encoder_end(self) -> tuple[FrozenReadout, list[str]]:
        """The frozen steps between the encoder's last layer and what the decoder reads."""
        described = self.lens.adapter
        assert isinstance(described, TwoStacks)
        with torch.no_grad():
            steps = [cast(step, self.dtype) for step in described.encoder_end()]
        readout = FrozenReadout.at(steps, self.behind(self.firsts[1] - 1), self.rule)
        return readout, [f"END {step.symbol}" for step in steps]

    def in_float32(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """What the model, which has run, returns in float32 from the last layer's vectors on."""
        returned: dict[nn.Module, Any] = {}
        for ran in self.visited:
            others = [None] * (ran.outputs - 1)
            returned[ran.block] = (ran.output, *others) if ran.outputs else ran.output
        return end_in_float32(model, inputs, returned)

    def end_errors(self, output: Any) -> Errors:
        """How far the frozen steps behind an encoder miss what the model computes in float32."""
        if len(self.firsts) == 1:
            return
        end, own = self.encoder_end()[0], output.encoder_last_hidden_state
        last, lengths = self.behind(self.firsts[1] - 1).to(own), self.lengths[0]
        what = "the steps behind the encoder"
        yield what, float(relative_error(end.linear(last) + end.bias, own, lengths))
        # A score is read at each token in the direction of its own vector.
        g, bias_part = end.score(own)
        score = (g * last).sum(-1) + sum(share for share in bias_part if share is not None)
        size = own.square().sum(-1)
        yield what, float(relative_error(score[..., None], size[..., None], lengths))


# The head behind the last layer.


class FrozenHead:
    """A head, frozen at the vectors `last` (n, d) of one sequence behind the last layer.

    The steps of its body act on the vectors of each pool, all others on the means that are read.
    """

    def __init__(self, head: Head, last: Tensor, rule: str, position: int | None = None):
        self.head, self.last, self.rule = head, last, rule
        self.pools = head.pools(position, len(last))
        self.bodies = [FrozenReadout.at(head.body, last[pool], rule) for pool in self.pools]
        means = torch.cat([body.output.mean(0) for body in self.bodies])
        bias = torch.cat([body.bias.mean(0) for body in self.bodies])
        self.steps = FrozenReadout.at(head.steps, means, rule, bias)

    def linear(self, vectors: Tensor) -> Tensor:
        """What the head makes of vectors (…, n, d) before its output, without biases: (…, d)."""
        pooled = zip(self.pools, self.bodies, strict=True)
        means = [body.linear(vectors[..., pool, :]).mean(-2) for pool, body in pooled]
        return self.steps.linear(torch.cat(means, dim=-1))

    def score(self, weight: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The gradient (n, d) of a score read along `weight` (d,), and what no token owns of it.

        The latter is named by component, with numbers where there are several of a kind.
        """
        body, names = self.head.body, _names((*self.head.body, *self.head.steps))
        g, of_steps = self.steps.score(weight)
        gradient, owed = torch.zeros_like(self.last), list[tuple[str, Tensor | None]]()
        for pool, frozen, share in zip(
            self.pools, self.bodies, g.chunk(len(self.pools)), strict=True
        ):
            of_pool, of_body = frozen.score((share / len(frozen.output)).expand_as(frozen.output))
            gradient[pool] += of_pool
            owed += zip(names, of_body, strict=False)
        owed += zip(names[len(body) :], of_steps, strict=True)
        bias_part: dict[str, float] = {}
        for name, bias in owed:
            if bias is not None:
                bias_part[name] = bias_part.get(name, 0.0) + float(bias.double().sum())
        return gradient, bias_part

    def columns(self, signed: Sequence[tuple[int, float]]) -> tuple[Tensor, float, list[float]]:
        """The weight (d,) and bias of a sum of output columns with signs, and their scores."""
        chosen = torch.tensor([column for column, _ in signed], device=self.last.device)
        signs = torch.tensor([sign for _, sign in signed]).to(self.last)
        weights, slopes, remainder, scores = _output(self.head, self.steps, chosen, self.rule)
        weight = weights @ (slopes * signs)
        return weight, float((remainder * signs).double().sum()), scores.double().tolist()


def _output(
    head: Head, steps: FrozenReadout, chosen: Tensor | slice, rule: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Some of a head's output columns: weights (d, c), slopes (…, c), remainders and scores alike.

    A score is ``slope · (weights · y) + remainder`` of what is read, y (…, d).
    """
    y, output = steps.output, head.output
    assert output is not None
    scale = output.scale[chosen].to(y) if isinstance(output.scale, Tensor) else output.scale
    weights = output.weight[:, chosen].to(y) * scale
    biases = torch.zeros_like(weights[0])
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
    return weights, slopes, capped - slopes * (scores - biases), capped


#: Output columns that an answer reads at a time.
_COLUMNS = 1 << 12


def answer_score(
    head: Head, last: Tensor, where: slice, coefficients: Tensor, rule: str
) -> tuple[Tensor, dict[str, float], Tensor]:
    """A sum of the head's scores at several positions, each times its coefficient (t, c).

    Returns the gradient (n, d) at the vectors `last` behind the last layer, what no token owns by
    component, and the scores (t, c). Coefficients are held: those of a log-probability,
    ``Σ_t (z_{t,y_t} − Σ_v p_{t,v} z_{t,v})``, are one of its token less all probabilities.
    """
    steps = (*head.body, *head.steps)
    frozen = FrozenReadout.at(steps, last[where], rule)
    # In float64: large vectors whose product with the weights is small would not forgive less.
    weight = torch.zeros_like(frozen.output, dtype=torch.float64)
    scores = torch.zeros_like(coefficients)
    of_output = 0.0
    for first in range(0, coefficients.shape[1], _COLUMNS):
        some = slice(first, first + _COLUMNS)
        signs = coefficients[:, some]
        if not signs.any():
            continue
        weights, slopes, remainder, scores[:, some] = _output(head, frozen, some, rule)
        weight += (slopes * signs) @ weights.T.double()
        of_output += float((remainder.double() * signs).sum())
    gradient, (g, shares) = torch.zeros_like(last), frozen.score(weight.to(last))
    gradient[where] = g
    bias_part = {"OUT": of_output}
    for name, share in zip(_names(steps), shares, strict=True):
        if share is not None:
            bias_part[name] = bias_part.get(name, 0.0) + float(share.double().sum())
    return gradient, bias_part, scores


def _names(steps: Sequence[HeadStep]) -> list[str]:
    """What the steps of a head are called: their symbols, numbered where there are several."""
    symbols = [step.symbol for step in steps]
    return [
        symbol + (str(symbols[: place + 1].count(symbol)) if symbols.count(symbol) > 1 else "")
        for place, symbol in enumerate(symbols)
    ]
