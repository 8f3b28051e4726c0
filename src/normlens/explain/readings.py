"""Readings: which number is explained, as a linear function of the vectors behind a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normlens.components import Linear
from normlens.decomposition.activations import activation
from normlens.decomposition.readout import FrozenReadout
from normlens.decomposition.rules import PLAIN_RULES
from normlens.heads import Head


@dataclass(frozen=True)
class Reading:
    """One number: a score of the head, the difference of two, or a vector's share of another.

    `columns` are the head's scores with their signs; `direction` (d,) is read instead at `position`
    behind layer `layer`, or behind the model's last step.
    """

    position: int | None = None  # None: every position, as the head pools them
    columns: tuple[tuple[int, float], ...] = ()
    direction: Tensor | None = None
    layer: int | None = None


@dataclass(frozen=True)
class Start:
    """Where the way back begins: the gradient at one layer's output, and the biases behind it."""

    layer: int  # the gradient stands behind this layer
    gradient: Tensor  # (n, d)
    unowned: dict[str, float]  # what no token owns behind it, by component
    value: float  # the score by the algebra
    columns: tuple[float, ...]  # the head's scores that it consists of, by the algebra


def start(reading: Reading, head: Head | None, last: Tensor, rule: str, count: int) -> Start:
    """The beginning of one reading's way back from the vectors `last` (n, d) of one sequence.

    `last` is behind layer `reading.layer`, or behind the last of `count` layers.
    """
    if reading.direction is not None and reading.layer is not None:
        assert reading.position is not None
        gradient = torch.zeros_like(last)
        gradient[reading.position] = reading.direction.to(last)
        value = float(last[reading.position].double() @ reading.direction.to(last).double())
        return Start(reading.layer, gradient, {}, value, ())
    assert head is not None
    pools = head.pools(reading.position, len(last))
    bodies = [FrozenReadout.at(head.body, last[pool], rule) for pool in pools]  # (tokens, d)
    pooled, pooled_bias = (
        torch.cat([vectors.mean(0) for vectors in each])
        for each in ([body.output for body in bodies], [body.bias for body in bodies])
    )
    steps = FrozenReadout.at(head.steps, pooled, rule, pooled_bias)
    unowned: dict[str, float] = {}
    columns: tuple[float, ...] = ()
    if reading.direction is not None:
        weight = reading.direction.to(last)
        value = float(steps.output.double() @ weight.double())
    else:
        assert head.output is not None
        weight, bias, columns = _columns(head.output, head.soft_cap, reading.columns, steps, rule)
        unowned["OUT"] = bias
        signs = [sign for _, sign in reading.columns]
        value = sum(sign * score for sign, score in zip(signs, columns, strict=True))
    g, of_steps = steps.score(weight)
    gradient, of_bodies = torch.zeros_like(last), []
    for pool, body, share in zip(pools, bodies, g.chunk(len(pools)), strict=True):
        spread = (share / len(body.output)).expand_as(body.output)
        of_pool, of_body = body.score(spread)
        gradient[pool] += of_pool
        of_bodies += of_body
    names = _step_names(head)
    in_body = names[: len(head.body)] * len(pools)
    for name, of_step in zip(
        [*in_body, *names[len(head.body) :]], [*of_bodies, *of_steps], strict=True
    ):
        if of_step is not None:
            unowned[name] = unowned.get(name, 0.0) + float(of_step.double().sum())
    return Start(count - 1, gradient, unowned, value, columns)


def _columns(
    output: Linear,
    cap: float | None,
    columns: tuple[tuple[int, float], ...],
    steps: FrozenReadout,
    rule: str,
) -> tuple[Tensor, float, tuple[float, ...]]:
    """The weight (d,) and bias of signed scores, and the scores themselves."""
    y = steps.output
    chosen = torch.tensor([column for column, _ in columns], device=y.device)
    scale = output.scale[chosen].to(y) if isinstance(output.scale, Tensor) else output.scale
    weights = output.weight[:, chosen].to(y) * scale  # (d, c)
    bias = torch.zeros(len(columns)) if output.bias is None else output.bias[chosen]
    biases = bias.to(y) * scale
    signs = torch.tensor([sign for _, sign in columns]).to(y)
    scores = y @ weights + biases
    slopes = torch.ones_like(scores)
    capped = scores
    if cap is not None:
        # c · tanh(z/c): the rule's slope of tanh at z/c.
        of_bias = steps.bias @ weights + biases
        tanh = PLAIN_RULES[rule](activation("tanh"), scores / cap, lambda: of_bias / cap)
        (slopes,), capped = tanh.slopes, tanh.hidden * cap
    remainder = capped - slopes * (scores - biases)
    weight = weights @ (slopes * signs)
    return weight, float((remainder * signs).double().sum()), tuple(capped.double().tolist())


def _step_names(head: Head) -> list[str]:
    """The names of the head's steps, numbered where one comes several times."""
    symbols = [step.symbol for step in (*head.body, *head.steps)]
    return [
        symbol + (str(symbols[: place + 1].count(symbol)) if symbols.count(symbol) > 1 else "")
        for place, symbol in enumerate(symbols)
    ]
