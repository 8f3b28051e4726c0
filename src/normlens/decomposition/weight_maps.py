"""Maps of an attention alone: of its weights, and of single heads."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from normlens.decomposition.attention import FrozenAttention
from normlens.decomposition.results import LayerMaps


def add_weight_maps(result: LayerMaps, attention: FrozenAttention, scopes: Collection[str]) -> None:
    """Add the maps of weights alone that are in `scopes`.

    ATTN-W and CROSS-W are ``mean_h α``, ATTNRES-W is ``½α + ½I`` (Abnar & Zuidema 2020).
    """
    symbol = attention.attention.symbol
    mean = attention.alpha.mean(1)  # (b, i, j)
    if attention.attention.source is not None:
        # No token of another sequence is the target itself.
        _add(result, f"{symbol}-W", mean, mean.new_zeros(mean.shape[:2]), scopes)
        return
    eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    for scope, weights in ((f"{symbol}-W", mean), (f"{symbol}RES-W", 0.5 * mean + 0.5 * eye)):
        own = weights.diagonal(dim1=1, dim2=2)
        # What a sink takes is no mixing with other tokens.
        others = weights.sum(-1) - own if attention.attention.sinks else None
        _add(result, scope, weights, own, scopes, others)


def _add(
    result: LayerMaps,
    scope: str,
    weights: Tensor,
    own: Tensor,
    scopes: Collection[str],
    others: Tensor | None = None,
) -> None:
    if scope in scopes:
        result.norms[scope] = weights
        result.own[scope], result.others[scope] = own, 1 - own if others is None else others


def add_head_maps(result: LayerMaps, attention: FrozenAttention) -> None:
    """Add the maps of single heads, ``α^h_ij`` and ``α^h_ij ‖f^h(x_j)‖``, each (b, h, i, j).

    Kobayashi et al. 2020, eq. 6.
    """
    alpha, symbol = attention.alpha, attention.attention.symbol
    sizes = attention.head_norms()  # (b, j, h)
    result.head_maps[f"{symbol}-W"] = alpha
    result.head_maps[f"{symbol}-N"] = alpha * sizes.transpose(1, 2)[:, :, None, :]
