"""Explanations of every family with every head: complete, and the same in three ways."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from heads import assert_every_layer_makes_the_score, every_head, headed, in_float64, tried_families

import normlens
from normlens.frozen.activations import activation
from normlens.frozen.layer import freeze
from normlens.layers import ANY, MEAN
from normlens.models.base import read_head
from normlens.trace.run import LayerTrace, reading, run_traced

IDS = [5, 17, 31, 8, 44, 23, 12]
HEADS = every_head()
#: The default rule with every head; the others with every kind of layer.
HEADS_AND_RULES = [
    (family, task, rule)
    for family, task in HEADS
    for rule in ("ig", "ig-bias", "gradient")
    if rule == "ig" or family in tried_families()
]


def test_there_are_many_heads():
    assert len(HEADS) > 60


def explain(model, ids=IDS, **asked):
    lens = normlens.load(model, tokenizer=False)
    head = read_head(lens.adapter)
    if head.reads == ANY and head.task != "causal language model":
        asked.setdefault("position", 3)
    return lens.explain(input_ids=ids, **asked)


kept_model = cache(headed)


@cache  # both tests below ask for each of them
def explained(family: str, task: str, rule: str) -> Any:
    with in_float64():
        return explain(kept_model(family, task), target=2, contrast=1, nonlinearity=rule)


def own_logits(model, ids=IDS) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0]


@pytest.mark.parametrize(("family", "task", "rule"), HEADS_AND_RULES)
def test_contributions_and_biases_are_the_models_own_score(family, task, rule):
    why = explained(family, task, rule)
    with in_float64():
        logits = own_logits(kept_model(family, task))
    if logits.dim() == 2:
        logits = logits[-1 if task == "CausalLM" else 3]
    value = float(logits[2] - logits[1])
    assert why.value == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert why.target_value == pytest.approx(float(logits[2]))
    total = float(why.contributions.sum()) + why.remainder
    assert abs(total - value) < 1e-10 * max(1, abs(value))
    assert why.completeness < 1e-10
    assert why.probability == pytest.approx(float(logits.softmax(-1)[2]))


@pytest.mark.parametrize(("family", "task", "rule"), HEADS_AND_RULES)
def test_components_and_biases_are_the_score_at_every_layer(family, task, rule):
    assert_every_layer_makes_the_score(explained(family, task, rule))


@pytest.mark.parametrize(("family", "task", "rule"), HEADS_AND_RULES)
def test_autograd_through_a_frozen_copy_gives_the_same(family, task, rule):
    """The copy is plain tensor code: α, deviations and slopes are detached constants in it."""
    why = explained(family, task, rule)
    with in_float64():
        expected = frozen_copy(kept_model(family, task), rule, columns=(2, 1))
    np.testing.assert_allclose(why.contributions, expected, rtol=0, atol=1e-9)


def frozen_copy(model, rule: str, columns: tuple[int, int]) -> np.ndarray:
    """Gradient × input of the embeddings in a network whose nonlinear parts are constants."""
    lens = normlens.load(model, tokenizer=False)
    traces: list[LayerTrace] = []
    ids = torch.tensor([IDS])
    with reading(lens.adapter.whole, lens.adapter):
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        run_traced(lens.adapter, lens.adapter.model, inputs, range(lens.n_layers), traces.append)
    start = traces[0].x.clone().requires_grad_()
    v = start
    for trace in traces:
        v = _copy_layer(trace, v, rule)
    head = read_head(lens.adapter)
    y = traces[-1].output
    bias = torch.zeros_like(y)
    for step in head.body:
        y, v, bias = _copy_step(step, y, v, bias, rule)
    position = {"first": 0, "last": len(IDS) - 1}.get(head.reads)
    if head.reads == MEAN:
        y, v, bias = y.mean(1), v.mean(1), bias.mean(1)
    else:
        if position is None:
            position = len(IDS) - 1 if head.task.startswith("causal") else 3
        y, v, bias = y[:, position], v[:, position], bias[:, position]
    for step in head.steps:
        y, v, bias = _copy_step(step, y, v, bias, rule)
    output = head.output.folded(torch.float64)
    weight = output.weight[:, list(columns)]
    scores, parts = y @ weight, v @ weight
    if output.bias is not None:
        scores = scores + output.bias[list(columns)]
    if head.soft_cap is not None:
        parts = parts * _slope(
            rule, lambda z: head.soft_cap * torch.tanh(z / head.soft_cap), scores
        )
    (g,) = torch.autograd.grad(parts[0, 0] - parts[0, 1], start)
    return (g * start).sum(-1)[0].detach().numpy()


def _copy_layer(trace: LayerTrace, v: torch.Tensor, rule: str) -> torch.Tensor:
    """The layer's linear face, written again from the components' weights."""
    layer = trace.layer.to(torch.float64)
    frozen = freeze(layer, trace.x, trace.alphas[0], [len(IDS)], rule)
    saved, start = [], v
    for step, made in zip(layer.steps, frozen.steps, strict=True):
        kind = type(step).__name__
        if kind == "Branch":
            beside = v
            for inner, frozen_inner in zip(step.through, made.steps, strict=True):
                if type(inner).__name__ == "Projection":
                    beside = beside @ inner.linear.weight
                else:
                    beside = _norm(inner, beside, frozen_inner.inverse_deviation)
            saved.append(beside)
        elif kind == "Projection":
            v = v @ step.linear.weight
        elif kind == "Residual":
            v = v + saved.pop()
        elif kind == "Norm":
            v = _norm(step, v, made.inverse_deviation)
        elif kind == "Attention":
            if step.latent is not None:
                v = _norm(
                    step.latent.norm,
                    v @ step.latent.down.weight,
                    made.reading.steps[1].inverse_deviation,
                )
            v = _attend(step, v, trace.alphas[0])
        elif kind == "FeedForward":
            v = _block(step, v, made.neurons.slopes)
        elif kind == "Experts":
            v = _mixture(made, v)
        else:
            inner = start
            if step.norm is not None:
                inner = _norm(step.norm, inner, made.norm.inverse_deviation)
            v = v + _block(step.feed_forward, inner, made.chain.steps[-1].neurons.slopes)
    return v


def _norm(norm, v, inverse_deviation):
    if norm.centred:
        v = v - v.mean(-1, keepdim=True)
    v = v * inverse_deviation.detach()[..., None]
    return v if norm.gamma is None else v * norm.gamma


def _attend(attention, v, alpha):
    per_group = attention.heads // attention.groups
    width = attention.value.weight.shape[1] // attention.groups
    total = 0
    for head in range(attention.heads):
        columns = slice(head // per_group * width, (head // per_group + 1) * width)
        rows = slice(head * width, (head + 1) * width)
        values = v @ attention.value.weight[:, columns]
        total = total + alpha[:, head] @ values @ attention.output.weight[rows]
    return total


def _mixture(made, v):
    total = torch.zeros_like(v)
    for used in made.used:
        picked = torch.zeros(len(used.rows), v.shape[1], dtype=v.dtype)
        picked[range(len(used.rows)), used.rows] = 1
        inner = picked @ v * used.inside
        total = total + picked.T @ (
            _block(used.block.ff, inner, used.neurons.slopes) * used.outside
        )
    return total


def _block(ff, v, slopes):
    inputs = [ff.up] if ff.gate is None else [ff.gate, ff.up]
    hidden = sum((v @ w.weight) * r.detach() for w, r in zip(inputs, slopes, strict=True))
    return hidden @ ff.down.weight


def _copy_step(step, y, v, bias, rule):
    """A step of a head: the real vector, the owned part's image, and the bias."""
    kind = type(step).__name__
    if kind == "Norm":
        square = y.var(-1, correction=0) if step.centred else y.square().mean(-1)
        inverse = (square + step.eps).rsqrt().detach()
        beta = 0 if step.beta is None else step.beta
        return tuple(_norm(step, x, inverse) + add for x, add in ((y, beta), (v, 0), (bias, beta)))
    if kind == "Dense":
        w, b = step.linear.weight, 0 if step.linear.bias is None else step.linear.bias
        return y @ w + b, v @ w, bias @ w + b
    g = activation(step.activation).value
    slope = _slope(rule, g, y, bias)
    return g(y), v * slope, g(y) - (y - bias) * slope


def _slope(rule, g, z, start=None):
    """The slope of g at z, or its mean on the path to z."""
    z = z.detach()
    if rule == "gradient":
        with torch.enable_grad():
            at = z.clone().requires_grad_()
            return torch.autograd.grad(g(at).sum(), at)[0]
    start = torch.zeros_like(z) if start is None or rule == "ig" else start.detach()
    return (g(z) - g(start)) / (z - start)
