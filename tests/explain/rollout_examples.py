"""Slow and obvious rollouts in float64, and the models that they are tried on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from reference import Reference, observe
from torch import Tensor, nn

from normlens.models import adapt

IDS = [3, 9, 27, 14, 5, 33, 8]
BATCH = [IDS, [40, 41, 3], [7, 12, 60, 22, 51]]
#: Families whose layers are ATTN RES LN FF RES LN.
POST_LN = ["albert", "bert", "deberta-v2", "distilbert", "mpnet", "roberta"]
D, HEADS, GROUPS = 16, 4, 2
WIDTH = D // HEADS


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


# Value zeroing ------------------------------------------------------------------------------------


def _everything(width: int) -> list[int]:
    return list(range(width))


def _last_third(width: int) -> list[int]:
    return list(range(2 * width // 3, width))


def _interleaved(width: int) -> list[int]:
    """Head by head as (query, key, value)."""
    per_head = width // HEADS
    return [h * per_head + 2 * per_head // 3 + k for h in range(HEADS) for k in range(WIDTH)]


def _grouped_values(width: int) -> list[int]:
    """Queries of all heads, keys of the groups, values of the groups."""
    return list(range(width - GROUPS * WIDTH, width))


#: Where each family's block makes its value vectors, and in which columns, written by hand.
VALUES: dict[str, tuple[str, Callable[[int], list[int]]]] = {
    "albert": ("attention.value", _everything),
    "bert": ("attention.self.value", _everything),
    "bloom": ("self_attention.query_key_value", _interleaved),
    "deberta-v2": ("attention.self.value_proj", _everything),
    "gemma2": ("self_attn.v_proj", _everything),
    "gpt2": ("attn.c_attn", _last_third),
    "gpt_neo": ("attn.attention.v_proj", _everything),
    "gpt_neox": ("attention.query_key_value", _interleaved),
    "gptj": ("attn.v_proj", _everything),
    "llama": ("self_attn.v_proj", _everything),
    "modernbert": ("attn.Wqkv", _last_third),
    "mpnet": ("attention.attn.v", _everything),
    "olmo2": ("self_attn.v_proj", _everything),
    "opt": ("self_attn.v_proj", _everything),
    "phi3": ("self_attn.qkv_proj", _grouped_values),
}


class Zeroed(nn.Module):
    """A value projection that gives one token no value when it is called for the k-th time."""

    def __init__(self, inner: nn.Module, columns: Callable[[int], list[int]], token: int, k: int):
        super().__init__()
        self.inner, self.columns, self.token, self.k, self.calls = inner, columns, token, k, 0

    def forward(self, x: Tensor) -> Tensor:
        output = self.inner(x).clone()
        if self.calls == self.k:
            for column in self.columns(output.shape[-1]):
                output[..., self.token, column] = 0.0
        self.calls += 1
        return output


def value_zeroing_maps(family: str, model: nn.Module, ids: list[int]) -> NDArray[Any]:
    """1 − cos of every layer's output with v_j = 0, in copies of the model with another module."""
    blocks = list(adapt(model).blocks())
    real = observe(adapt(model).model, blocks, ids).output
    path, columns = VALUES[family]
    n = len(ids)
    maps = np.zeros((len(blocks), n, n))
    for layer, block in enumerate(blocks):
        shared = sum(other is block for other in blocks) > 1  # ALBERT runs one block many times
        for j in range(n):
            changed_model = copy.deepcopy(model)
            changed_blocks = list(adapt(changed_model).blocks())
            parent, _, name = path.rpartition(".")
            holder = changed_blocks[layer].get_submodule(parent)
            zeroed = Zeroed(getattr(holder, name), columns, j, layer if shared else 0)
            setattr(holder, name, zeroed)
            changed = _run(changed_model, changed_blocks, ids)[layer]
            for i in range(n):
                a, b = real[layer][i].double(), changed[i].double()
                maps[layer, i, j] = 1 - float(a @ b / (a.norm() * b.norm()))
    return maps


def _run(model: nn.Module, blocks: list[nn.Module], ids: list[int]) -> list[Tensor]:
    outputs: list[Tensor] = []

    def after(_: object, __: object, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output)[0])

    handles = [block.register_forward_hook(after) for block in dict.fromkeys(blocks)]
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    return outputs
