"""Readings: which number is explained, as a linear function of the vectors behind a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normlens.components import Linear
from normlens.decomposition.activations import activation
from normlens.decomposition.readout import FrozenReadout
from normlens.decomposition.rules import PLAIN_RULES
from normlens.heads import MEAN, Head


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
    names = _step_names(head)
    every = reading.position is None
    read = last if every else last[reading.position][None]  # (tokens, d)
    body = FrozenReadout.at(head.body, read, rule)
    assert not every or head.reads == MEAN
    pooled, pooled_bias = body.output.mean(0), body.bias.mean(0)
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
    spread = (g / len(read)).expand_as(body.output)
    g, of_body = body.score(spread)
    for name, share in zip(names, [*of_body, *of_steps], strict=True):
        if share is not None:
            unowned[name] = unowned.get(name, 0.0) + float(share.double().sum())
    gradient = (
        g
        if every
        else torch.zeros_like(last).index_copy(
            0, torch.tensor([reading.position], device=last.device), g
        )
    )
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
