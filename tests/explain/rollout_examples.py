"""Slow and obvious rollouts in float64, and the models that they are tried on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from reference import Reference, observe, reference
from torch import Tensor, nn

from normlens.layers import Layer
from normlens.models import adapt

IDS = [3, 9, 27, 14, 5, 33, 8]
BATCH = [IDS, [40, 41, 3], [7, 12, 60, 22, 51]]
#: Families whose layers are ATTN RES LN FF RES LN.
POST_LN = ["albert", "bert", "deberta-v2", "distilbert", "mpnet", "roberta"]
#: Families whose projections make values alone, or queries and keys as well.
VALUES = ["albert", "bert", "bloom", "deberta-v2", "gemma2", "gpt2", "gpt_neo", "gpt_neox", "gptj"]
VALUES += ["llama", "modernbert", "mpnet", "olmo2", "opt", "phi3"]


def slow_rollout(maps: NDArray[Any], residual: float, normalise: bool) -> NDArray[Any]:
    """Every path from a token of the first layer to one of each layer, one by one."""
    layers, n, _ = maps.shape
    step = np.zeros_like(maps, dtype=np.float64)
    for layer in range(layers):
        for i in range(n):
            total = sum(maps[layer, i]) if normalise else 1.0
            total = total or 1.0  # in a random model no part may bring a vector closer
            for j in range(n):
                step[layer, i, j] = (1 - residual) * maps[layer, i, j] / total
            step[layer, i, i] += residual
    result = step.copy()
    for layer in range(1, layers):
        for i in range(n):
            for j in range(n):
                ways = [step[layer, i, k] * result[layer - 1, k, j] for k in range(n)]
                result[layer, i, j] = sum(ways)
    return result


def globenc_map(layer: Reference, gamma: Tensor, eps: float) -> NDArray[Any]:
    """‖(P_ij − mean)/σ(LN2) ⊙ γ₂‖ of one layer, every part by itself."""
    parts = layer.parts["ATTNRESLN-N"].owned
    entering = layer.parts["ATTNRESLNFFRES-N"].total
    n = len(parts)
    norms = np.zeros((n, n))
    for i in range(n):
        sigma = np.sqrt(entering[i].numpy().var() + eps)
        for j in range(n):
            part = parts[i, j]
            norms[i, j] = np.linalg.norm((part - part.mean()).numpy() / sigma * gamma.numpy())
    return norms


def alti_map(layer: Reference, scope: str) -> NDArray[Any]:
    """max(0, ‖y_i‖₁ − ‖y_i − F_i(x_j)‖₁) of one layer."""
    parts = layer.parts[scope]
    y, owned = parts.total.numpy(), parts.owned.numpy()
    n = len(y)
    return np.array(
        [
            [max(0.0, np.abs(y[i]).sum() - np.abs(y[i] - owned[i, j]).sum()) for j in range(n)]
            for i in range(n)
        ]
    )


def value_zeroing_maps(model: nn.Module, ids: list[int]) -> NDArray[Any]:
    """1 − cos of every layer's output with v_j = 0: as if no token attended to j."""
    adapter = adapt(model)
    blocks = list(adapter.blocks())
    seen, maps = observe(adapter.model, blocks, ids), np.zeros((len(blocks), len(ids), len(ids)))
    for found, block, x, alpha in zip(maps, blocks, seen.x, seen.alpha, strict=True):
        layer = adapter.layer(block)
        y = _behind(layer, x, alpha)
        for j in range(len(ids)):
            others = alpha.clone()
            others[:, :, j] = 0
            found[:, j] = 1 - torch.cosine_similarity(y, _behind(layer, x, others))
    return maps


def _behind(layer: Layer, x: Tensor, alpha: Tensor) -> Tensor:
    return list(reference(layer, x, alpha).parts.values())[-1].total
