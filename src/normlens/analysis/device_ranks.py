"""Spearman's ρ of many maps at once, on the device where they lie; `ranks` for tensors."""

from __future__ import annotations

import torch
from torch import Tensor

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
    ranks = _centred_ranks(maps.flatten(-2), allowed.flatten(-2))
    products = ranks @ ranks.transpose(-1, -2)
    squares = products.diagonal(dim1=-2, dim2=-1)
    squares = torch.where(squares > 0, squares, torch.nan)
    return (products / (squares[..., :, None] * squares[..., None, :]).sqrt()).clamp(-1, 1)


def _centred_ranks(values: Tensor, allowed: Tensor) -> Tensor:
    """``2 · rank − (p + 1)`` of the p allowed values of each row (b, s, ·), 0 for the others."""
    size = values.shape[-1]
    count = allowed.sum(-1, dtype=torch.int32)[:, None, None]
    broken = (values.isnan() & allowed[:, None]).any(-1, keepdim=True)
    # What is not allowed comes last, behind all numbers.
    numbers = values.clamp_max(torch.finfo(values.dtype).max)
    ordered, order = torch.where(allowed[:, None], numbers, torch.inf).sort(-1)
    place = torch.arange(size, dtype=torch.int32, device=values.device)
    new = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[..., 1:], ordered[..., :-1], out=new[..., 1:])
    # Equal values are runs [s, e), and their average rank is (s + e + 1) / 2.
    starts = torch.where(new, place, 0).cummax(-1).values
    following = torch.full_like(starts, size)
    following[..., :-1] = torch.where(new[..., 1:], place[1:], size)
    ends = following.flip(-1).cummin(-1).values.flip(-1)
    centred = torch.where(place < count, starts + torch.minimum(ends, count) - count, 0)
    ranks = torch.empty(values.shape, dtype=torch.float64, device=values.device)
    ranks.scatter_(-1, order, centred.double())
    return ranks.masked_fill_(broken, torch.nan)
