"""Measures that run on a device: ranks of many maps, and the expansion rate of weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.layers import Attention, Linear

if TYPE_CHECKING:
    from normlens.lens import Lens


# Spearman's ρ of many maps at once, on the device where they lie; `ranks` for tensors.


AT_ONCE = 1 << 25  # values ranked at once, which bounds the memory that it takes


def spearman_matrices(maps: Tensor, allowed: Tensor) -> Tensor:
    """Spearman's ρ between all scopes, (b, s, i, j) → (b, s, s), over the allowed pairs (b, i, j).

    Ties get their average rank; NaN where a map is constant or holds a NaN. Twice a centred
    average rank is a whole number, so the sums of products are exact in float64.
    """
    step = max(1, AT_ONCE // max(1, maps[0].numel()))
    return torch.cat(
        [
            _matrices(maps[start : start + step], allowed[start : start + step])
            for start in range(0, len(maps), step)
        ]
    )


def _matrices(maps: Tensor, allowed: Tensor) -> Tensor:
    batch, scopes, targets, sources = maps.shape
    values = maps.flatten(-2).transpose(0, 1)
    ranks, broken = _centred_ranks(values, allowed.flatten(-2))  # (s, b, i·j), (s, b)
    # One product per target keeps a GPU busier than one per sequence; sums of whole numbers are
    # the same either way. With scopes in front, targets of all sequences are one batch, uncopied.
    by_target = ranks.view(scopes, batch * targets, sources).transpose(0, 1)
    products = (by_target @ by_target.mT).view(batch, targets, scopes, scopes).sum(1)
    squares = products.diagonal(dim1=-2, dim2=-1)
    squares = torch.where((squares > 0) & ~broken.T, squares, torch.nan)
    return (products / (squares[..., :, None] * squares[..., None, :]).sqrt()).clamp(-1, 1)


def _centred_ranks(values: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """``2 · rank − (p + 1)`` of the p allowed values of each row (s, b, ·), 0 for the others.

    Also whether a row has NaN among them (s, b); its ranks are then undefined.
    """
    # What is not allowed comes behind all numbers, and NaN behind that.
    numbers = values.clamp_max(torch.finfo(values.dtype).max)
    ordered, order = torch.where(allowed, numbers, torch.inf).contiguous().sort(-1)
    # Equal values are runs [s, e), and their average rank is (s + e + 1) / 2. Two searches for
    # sorted values read neighbours together, which is cheaper than scans, or than searches for
    # values in the order of the map.
    ends = torch.searchsorted(ordered, ordered, right=True, out_int32=True)
    sums = torch.searchsorted(ordered, ordered, out_int32=True).add_(ends)
    placed = torch.empty_like(sums).scatter_(-1, order, sums)
    # (s + e − p) where it is allowed, in one pass.
    count = allowed.sum(-1, keepdim=True, dtype=torch.int32)
    ranks = torch.empty(placed.shape, dtype=torch.float64, device=values.device)
    torch.addcmul(-count * allowed, placed, allowed, out=ranks)
    return ranks, ordered[..., -1:].isnan().any(-1)


# How much the attention's transformation of a vector expands it, from the weights alone.


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
    value, output = _homogeneous(attention.value), _homogeneous(attention.output)
    # Each group's columns are repeated for its heads; the last column belongs to none.
    columns = torch.arange(value.shape[1] - 1).view(attention.groups, -1)
    columns = columns.repeat_interleave(attention.heads // attention.groups, dim=0).flatten()
    value = value[:, [*columns.tolist(), -1]]
    if published:
        if value.shape[1] != output.shape[1]:
            return math.nan
        output[:-1, -1] = output[-1, :-1].clone()
        output[-1, :-1] = 0
    return float(torch.linalg.matrix_norm(value @ output)) / math.sqrt(output.shape[1])


def _homogeneous(linear: Linear) -> Tensor:
    """``[[W, 0], [b, 1]]`` in float64 on the CPU."""
    rows, columns = linear.weight.shape
    matrix = torch.zeros(rows + 1, columns + 1, dtype=torch.float64)
    matrix[:-1, :-1] = linear.weight.detach()
    if linear.bias is not None:
        matrix[-1, :-1] = linear.bias.detach()
    scale = linear.scale
    matrix[:, :-1] *= scale.detach().to(matrix) if isinstance(scale, Tensor) else scale
    matrix[-1, -1] = 1
    return matrix
