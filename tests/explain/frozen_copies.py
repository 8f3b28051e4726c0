"""A frozen copy of a model, written out with autograd: α, σ and slopes are constants.

Nothing of `normlens.decomposition` takes part; norms, products and integrals are the reference's.
"""

from __future__ import annotations

from typing import Any

import torch
from reference import differentiate, hidden, mean_slopes, observe, reference
from torch import Tensor

from normlens.components import Attention, Branch, FeedForward, Layer, Norm, Residual
from normlens.models import adapt


def frozen_outputs(model: Any, ids: list[int], rule: str) -> tuple[Tensor, list[list[Tensor]]]:
    """The tokens e (n, d), with gradients, and by layer what is made of them behind each step."""
    adapter = adapt(model)
    blocks = list(adapter.blocks())
    seen = observe(adapter.model, blocks, ids)
    tokens = seen.x[0].double().clone().requires_grad_()
    y, outputs = tokens, []
    for block, x, alpha in zip(blocks, seen.x, seen.alpha, strict=True):
        layer = adapter.layer(block).to(torch.float64)
        behind = _through(layer, y, x.double(), alpha.double(), rule)
        outputs.append(behind)
        y = behind[-1]
    return tokens, outputs


def _through(layer: Layer, y: Tensor, x: Tensor, alpha: Tensor, rule: str) -> list[Tensor]:
    """Both y and the real vectors x (i, d) behind every step; only x decides what is frozen."""
    biases = [parts.bias for parts in reference(layer, x, alpha, rule).parts.values()]
    pair = torch.stack([y, x])  # the first is followed, the second is what the model computed
    start, saved, outputs = pair, [], []
    scopes = list(layer.scope_of_step)
    for index, step in enumerate(layer.steps):
        if isinstance(step, Branch):
            saved.append(pair)
        elif isinstance(step, Residual):
            pair = pair + saved.pop()
        elif isinstance(step, Norm):
            pair = _norm(step, pair)
        elif isinstance(step, Attention):
            pair = _attention(step, pair, alpha)
        elif isinstance(step, FeedForward):
            pair = _feed_forward(step, pair, biases[scopes.index(index) - 1], rule)
        else:
            entering = start if step.norm is None else _norm(step.norm, start)
            beta = None if step.norm is None else step.norm.beta
            bias = torch.zeros_like(x) if beta is None else beta.expand_as(x)
            pair = pair + _feed_forward(step.feed_forward, entering, bias, rule)
        outputs.append(pair[0])
    return outputs


def _norm(step: Norm, pair: Tensor) -> Tensor:
    real = pair[1].detach()
    if step.centred:
        pair = pair - pair.mean(-1, keepdim=True)
        real = real - real.mean(-1, keepdim=True)
    pair = pair / (real.square().mean(-1, keepdim=True) + step.eps).sqrt()
    pair = pair if step.gamma is None else pair * step.gamma
    return pair if step.beta is None else pair + step.beta


def _attention(step: Attention, pair: Tensor, alpha: Tensor) -> Tensor:
    values = step.value(pair).unflatten(-1, (step.groups, -1))
    width, each = values.shape[-1], step.heads // step.groups
    total = torch.zeros_like(pair)
    for head in range(step.heads):
        rows = slice(head * width, (head + 1) * width)
        total = total + alpha[head] @ values[..., head // each, :] @ step.output.weight[rows]
    return total if step.output.bias is None else total + step.output.bias


def _feed_forward(ff: FeedForward, pair: Tensor, bias: Tensor, rule: str) -> Tensor:
    maps = [ff.up] if ff.gate is None else [ff.gate, ff.up]
    arguments = [linear(pair) for linear in maps]
    real = [argument[1].detach() for argument in arguments]
    begin = [linear(bias) if rule == "ig-bias" else torch.zeros_like(z)
             for linear, z in zip(maps, real, strict=True)]  # fmt: skip
    way = [(z - b)[None] for z, b in zip(real, begin, strict=True)]
    f = hidden(ff)
    slopes = differentiate(f, begin, way)[0] if rule == "gradient" else mean_slopes(f, begin, way)
    rest = f(*real)
    for z, slope in zip(real, slopes, strict=True):
        rest = rest - z * slope[0]
    total = rest.expand_as(arguments[0])
    for argument, slope in zip(arguments, slopes, strict=True):
        total = total + argument * slope[0]
    return ff.down(total)
