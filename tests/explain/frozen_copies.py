"""A frozen copy of a model, written out with autograd: α, σ and slopes are constants.

Nothing of `normlens.frozen` takes part; norms, products and integrals are the reference's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from reference import (
    Routed,
    differentiate,
    hidden,
    mean_slopes,
    model_activation,
    observe,
    observe_pair,
)
from torch import Tensor

from normlens.layers import (
    Attention,
    Branch,
    Experts,
    FeedForward,
    Layer,
    Norm,
    Projection,
    Residual,
    cast,
)
from normlens.models import adapt


def frozen_outputs(
    model: Any, ids: list[int], rule: str, real: list[dict[int, Tensor]]
) -> tuple[Tensor, list[list[Tensor]]]:
    """The tokens e (n, d), with gradients, and by layer what is made of them behind each step.

    `real` are the model's own vectors (b, i, d) behind some steps of each layer: what is frozen
    behind them is frozen there, because RMSNorm computes in float32 whatever the model is in.
    """
    adapter = adapt(model)
    blocks = list(adapter.blocks())
    seen = observe(adapter.model, blocks, ids)
    tokens = seen.x[0].double().clone().requires_grad_()
    y, outputs = tokens, []
    ran = zip(blocks, seen.x, seen.alpha, real, seen.routed, strict=True)
    for block, x, alpha, own, routed in ran:
        layer = adapter.layer(block).to(torch.float64)
        behind = _through(layer, y, x.double(), alpha.double(), rule, own, routed=routed)
        outputs.append(behind)
        y = behind[-1]
    return tokens, outputs


class FrozenPair:
    """A frozen copy of an encoder–decoder: a function of its tokens, and of nothing else."""

    def __init__(self, model: Any, inputs: dict[str, Tensor], rule: str):
        self.adapter: Any = adapt(model)
        self.stacks = list(self.adapter.encoder_blocks()), list(self.adapter.decoder_blocks())
        self.seen = observe_pair(self.adapter.model, self.stacks, inputs)
        self.rule = rule
        self.layers = [
            [self.adapter.layer(block).to(torch.float64) for block in blocks]
            for blocks in self.stacks
        ]
        self.slopes: dict[int, list[Tensor]] = {}  # of each block, which depend on no token given
        self.source, self.target = (
            stack.x[0].double().clone() for stack in (self.seen.encoder, self.seen.decoder)
        )

    def __call__(
        self, source: Tensor, target: Tensor
    ) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """What is made of these tokens (n, d) in both stacks, by layer and step."""
        seen, y = self.seen, source
        encoder: list[list[Tensor]] = []
        for layer, x, alpha in zip(self.layers[0], seen.encoder.x, seen.encoder.alpha, strict=True):
            real = x.double(), alpha.double(), self.rule
            encoder.append(_through(layer, y, *real, {}, slopes=self.slopes))
            y = encoder[-1][-1]
        last = seen.encoder.output[-1].double()
        memory = _through_norms(self.adapter.encoder_end(), y, last)
        torch.testing.assert_close(memory[1], seen.memory.double(), rtol=0, atol=1e-10)
        y, decoder = target, []
        rows = zip(self.layers[1], seen.decoder.x, seen.decoder.alpha, seen.cross, strict=True)
        for layer, x, alpha, cross in rows:
            real = x.double(), alpha.double(), self.rule
            other = memory, cross.double()
            decoder.append(_through(layer, y, *real, {}, other, self.slopes))
            y = decoder[-1][-1]
        return encoder, decoder


def frozen_pair_scores(
    model: Any, inputs: dict[str, Tensor], rule: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The source's and the target's tokens, with gradients, and the scores (i, words) of them."""
    frozen = FrozenPair(model, inputs, rule)
    source, target = (tokens.requires_grad_() for tokens in (frozen.source, frozen.target))
    _, decoder = frozen(source, target)
    real = frozen.seen.decoder.output[-1].double()
    last, _ = _through_norms(frozen.adapter.end(), decoder[-1][-1], real)
    return source, target, _words(model, last)


def _words(model: Any, last: Tensor) -> Tensor:
    """The scores of words as the families' own code makes them of their last vectors."""
    scaled = model.config.model_type in ("t5", "umt5")
    scores = model.get_output_embeddings()(last * model.config.d_model**-0.5 if scaled else last)
    bias = getattr(model, "final_logits_bias", None)
    return scores if bias is None else scores + bias[0]


def _through_norms(steps: list[Any], y: Tensor, real: Tensor) -> Tensor:
    pair = torch.stack([y, real])
    for step in steps:
        pair = _norm(cast(step, torch.float64), pair)
    return pair


def _through(
    layer: Layer,
    y: Tensor,
    x: Tensor,
    alpha: Tensor,
    rule: str,
    real: dict[int, Tensor],
    other: tuple[Tensor, Tensor] | None = None,
    slopes: dict[int, list[Tensor]] | None = None,
    routed: Routed | None = None,
) -> list[Tensor]:
    """Both y and the real vectors x (i, d) behind every step; only x decides what is frozen.

    `other` is another sequence, followed and real (2, k, d), with the weights that read it. Slopes
    that `slopes` has of a block are not computed again.
    """
    pair = torch.stack([y, x])  # the first is followed, the second is what the model computed
    bias = torch.zeros_like(x)  # inside the layer, where a token owns what precedes the mixing
    start, saved, outputs, mixed = pair, [], [], False
    for index, step in enumerate(layer.steps):
        if isinstance(step, Branch):
            beside = pair
            for inner in step.through:  # before tokens are mixed, so that they own it
                is_norm = isinstance(inner, Norm)
                beside = _norm(inner, beside) if is_norm else inner.linear(beside)
            saved.append((beside, torch.zeros_like(beside[1]) if step.through else bias))
        elif isinstance(step, Projection):
            pair = step.linear(pair)
            bias = step.linear(bias) if mixed else torch.zeros_like(pair[1])
        elif isinstance(step, Residual):
            before, bias_before = saved.pop()
            pair, bias = pair + before, bias + bias_before
        elif isinstance(step, Norm):
            bias = _norm(step, torch.stack([bias, pair[1]]))[0] if mixed else bias
            pair = _norm(step, pair)
        elif isinstance(step, Attention):
            if step.source is None:
                pair = _attention(step, pair, alpha)
            else:
                assert other is not None
                pair = _attention(step, *other)
            mixed = True
            bias = torch.zeros_like(pair[1])
            bias = bias if step.output.bias is None else bias + step.output.bias
        elif isinstance(step, FeedForward):
            # A third vector that passes: what no token owns, which a later block begins with.
            passing = torch.cat([pair, bias[None]])
            *_, bias = passed = _feed_forward(step, passing, bias, rule, slopes)
            pair, bias = passed[:2], bias.detach()
        elif isinstance(step, Experts):
            assert routed is not None
            pair = _mixture(step, pair, bias, rule, routed)
        else:
            entering = start if step.norm is None else _norm(step.norm, start)
            beta = None if step.norm is None else step.norm.beta
            bias_part = torch.zeros_like(x) if beta is None else beta.expand_as(x)
            pair = pair + _feed_forward(step.feed_forward, entering, bias_part, rule)
        if index in real:
            pair = torch.stack([pair[0], real[index][0].double()])
        outputs.append(pair[0])
    return outputs


def _norm(step: Norm, pair: Tensor) -> Tensor:
    if step.eps is None:
        return pair * step.gamma + step.beta
    real = pair[1].detach()
    if step.centred:
        pair = pair - pair.mean(-1, keepdim=True)
        real = real - real.mean(-1, keepdim=True)
    pair = pair / (real.square().mean(-1, keepdim=True) + step.eps).sqrt()
    pair = pair if step.gamma is None else pair * step.gamma
    return pair if step.beta is None else pair + step.beta


def _attention(step: Attention, pair: Tensor, alpha: Tensor) -> Tensor:
    if step.latent is not None:
        pair = _norm(step.latent.norm, step.latent.down(pair))
    values = step.value(pair).unflatten(-1, (step.groups, -1))
    width, each = values.shape[-1], step.heads // step.groups
    total: Any = 0
    for head in range(step.heads):
        rows = slice(head * width, (head + 1) * width)
        total = total + alpha[head] @ values[..., head // each, :] @ step.output.weight[rows]
    return total if step.output.bias is None else total + step.output.bias


def _mixture(step: Experts, pair: Tensor, bias: Tensor, rule: str, routed: Routed) -> Tensor:
    """Each expert, on the targets that used it, times the weight that it had for each of them."""
    total = torch.zeros_like(pair)

    def through(block: FeedForward, targets: Tensor, weights: Tensor, inside: bool) -> Tensor:
        before, behind = (weights, 1.0) if inside else (1.0, weights)
        member = cast(block, torch.float64)
        passed = _feed_forward(member, before * pair[:, targets], before * bias[targets], rule)
        return total.index_add(1, targets, step.scale * behind * passed)

    for expert in routed.experts.unique().tolist():
        targets, places = torch.where(routed.experts == expert)
        weights = routed.weights[targets, places].double()[:, None]
        total = through(step.members[expert], targets, weights, step.weighs_input)
    if step.shared is not None:
        every = torch.arange(pair.shape[1])
        ones = torch.ones(len(every), 1, dtype=torch.float64)
        shared = ones if routed.shared is None else routed.shared.double()[:, None]
        total = through(step.shared, every, shared, inside=False)
    return total


def _feed_forward(
    ff: FeedForward,
    pair: Tensor,
    bias: Tensor,
    rule: str,
    known: dict[int, list[Tensor]] | None = None,
) -> Tensor:
    maps = [ff.up] if ff.gate is None else [ff.gate, ff.up]
    arguments = [linear(pair) for linear in maps]
    real = [argument[1].detach() for argument in arguments]
    begin = [linear(bias) if rule == "ig-bias" else torch.zeros_like(z)
             for linear, z in zip(maps, real, strict=True)]  # fmt: skip
    way = [(z - b)[None] for z, b in zip(real, begin, strict=True)]
    f = hidden(ff)
    slopes = (known or {}).get(id(ff))
    if slopes is None:
        rule_of = mean_slopes if rule != "gradient" else lambda *args: differentiate(*args)[0]
        slopes = rule_of(f, begin, way)
        if known is not None:
            known[id(ff)] = slopes
    rest = f(*real)
    for z, slope in zip(real, slopes, strict=True):
        rest = rest - z * slope[0]
    total = rest.expand_as(arguments[0])
    for argument, slope in zip(arguments, slopes, strict=True):
        total = total + argument * slope[0]
    return ff.down(total)


def frozen_scores(
    model: Any, ids: list[int], head: Any, rule: str, read: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens, with gradients, the head's scores of what `read` chooses, and the followed ones.

    The latter are linear in the tokens.
    """
    layers = len(list(adapt(model).blocks()))
    tokens, outputs = frozen_outputs(model, ids, rule, [{} for _ in range(layers)])
    last = outputs[-1][-1]
    three = last.detach(), last, torch.zeros_like(last)
    for step in head.body:
        three = _head_step(step, *three, rule)
    three = tuple(map(read, three))
    for step in head.steps:
        three = _head_step(step, *three, rule)
    output, cap = head.output.folded(torch.float64), head.soft_cap
    scores, followed = three[0] @ output.weight, three[1] @ output.weight
    if output.bias is not None:
        scores = scores + output.bias
    if cap is not None:
        followed = followed * _mean_slope(rule, lambda z: cap * torch.tanh(z / cap), scores)
        scores = cap * torch.tanh(scores / cap)
    return tokens, scores, followed


def times_input(score: Tensor, tokens: Tensor) -> Any:
    """Gradient × input of a score, by token."""
    (g,) = torch.autograd.grad(score, tokens, retain_graph=True)
    return (g * tokens).sum(-1).detach().numpy()


def _head_step(
    step: Any, y: Tensor, v: Tensor, bias: Tensor, rule: str
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of a head: the real vectors, the followed ones, and what no token owns."""
    kind = type(step).__name__
    if kind == "Norm":
        square = y.var(-1, correction=0) if step.centred else y.square().mean(-1)
        inverse = (square + step.eps).rsqrt().detach()
        beta = 0 if step.beta is None else step.beta
        real, image, rest = (_scaled(step, x, inverse) for x in (y, v, bias))
        return real + beta, image, rest + beta
    if kind == "Dense":
        w, b = step.linear.weight, 0 if step.linear.bias is None else step.linear.bias
        return y @ w + b, v @ w, bias @ w + b
    g = model_activation(step.activation)
    slope = _mean_slope(rule, g, y, bias)
    return g(y), v * slope, g(y) - (y - bias) * slope


def _scaled(norm: Norm, v: Tensor, inverse_deviation: Tensor) -> Tensor:
    if norm.centred:
        v = v - v.mean(-1, keepdim=True)
    v = v * inverse_deviation[..., None]
    return v if norm.gamma is None else v * norm.gamma


def _mean_slope(rule: str, g: Any, z: Tensor, start: Tensor | None = None) -> Tensor:
    """The slope of g at z, or its mean on the path to z."""
    z = z.detach()
    if rule == "gradient":
        with torch.enable_grad():
            at = z.clone().requires_grad_()
            return torch.autograd.grad(g(at).sum(), at)[0]
    start = torch.zeros_like(z) if start is None or rule == "ig" else start.detach()
    return (g(z) - g(start)) / (z - start)
