"""How much the attention's transformation of a vector expands it, from the weights alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normlens.components import Attention, Linear
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.lens import Lens


def expansion_rates(lens: Lens, *, published: bool = False) -> list[float]:
    """The expansion rate of every layer of a model; `published` as in `expansion_rate`."""
    layers = (lens.adapter.layer(block) for block in lens.adapter.blocks())
    return [expansion_rate(layer.attention, published=published) for layer in layers]


def expansion_rate(attention: Attention, *, published: bool = False) -> float:
    """``‖Ṽ Õ‖_F / sqrt(d + 1)`` of ``x ↦ (x W_V + b_V) W_O + b_O`` in homogeneous form.

    With ``(x, 1)`` as rows, ``Ṽ = [[W_V, 0], [b_V, 1]]`` and ``Õ = [[W_O, 0], [b_O, 1]]``, so that
    ``Ṽ Õ = [[W_V W_O, 0], [b_V W_O + b_O, 1]]``: the root mean square of its singular values.
    Kobayashi et al. 2021. All heads are taken together, each with the values of its group; what
    stands before the attention (a pre-norm) is no part of it.

    The authors' program, which gave the published rates, puts ``b_O`` into the last column,
    ``Õ = [[W_O, b_O], [0, 1]]``, where a row vector does not meet it. `published` does the same;
    NaN where W_V does not give vectors of the model's width, so that this Õ does not exist.
    """
    if attention.latent is not None:
        raise InputError(
            "the values of latent attention pass a norm, so no matrix of weights alone gives their "
            "expansion rate"
        )
    value, output = _spread(attention), _float64(attention.output)
    d = output.weight.shape[1]
    b_value = _bias(value)
    b_output = _bias(output)
    linear = value.weight @ output.weight  # (d, d)
    if not published:
        square = _square(linear) + _square(b_value @ output.weight + b_output) + 1.0
    elif value.weight.shape[1] != d:
        return math.nan
    else:
        square = (
            _square(linear)
            + _square(value.weight @ b_output)
            + _square(b_value @ output.weight)
            + _square(b_value @ b_output + 1)
        )
    return math.sqrt(square / (d + 1))


def _spread(attention: Attention) -> Linear:
    """The value projection with each group's columns repeated for its heads, (d, h · d_head)."""
    repeats = attention.heads // attention.groups

    def spread(t: Tensor) -> Tensor:
        groups = t.unflatten(-1, (attention.groups, -1))
        return groups.repeat_interleave(repeats, dim=-2).flatten(-2)

    value = _float64(attention.value)
    return Linear(spread(value.weight), None if value.bias is None else spread(value.bias))


def _float64(linear: Linear) -> Linear:
    bias, scale = linear.bias, linear.scale
    scale = _exact(scale) if isinstance(scale, Tensor) else scale
    return Linear(_exact(linear.weight) * scale, None if bias is None else _exact(bias) * scale)


def _exact(t: Tensor) -> Tensor:
    return t.detach().to("cpu", torch.float64)


def _bias(linear: Linear) -> Tensor:
    return linear.weight.new_zeros(linear.weight.shape[1]) if linear.bias is None else linear.bias


def _square(t: Tensor) -> float:
    return float(t.square().sum())
