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
