"""The state of this installation, and a check of its numbers against an independent computation.

The check takes a tiny BERT and a tiny Llama and computes their maps a second time, straight from
the definition: every part F_i(x_j) as a separate vector, in float64, from the model's weights. It
shares no code with `normlens.frozen`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normlens._version import __version__
from normlens.lens import Lens
from normlens.loading import hub
from normlens.loading.embedded import EMBEDDED
from normlens.models.tiny import tiny_model
from normlens.plan.memory import free_memory

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "safetensors",
    "huggingface_hub",
    "matplotlib",
    "gguf",
    "accelerate",
)
#: Both computations run in float64 and differ only in the order of their sums.
AGREEMENT = 1e-8
TOKENS = [5, 17, 3, 42, 17, 8, 60]


# The installation -------------------------------------------------------------------------------


def installation() -> dict[str, dict[str, str]]:
    """Installed versions, the machine and the models it can load, by section."""
    return {
        "versions": _versions(),
        "machine": _machine(),
        "models": {**_embedded(), "Hugging Face hub": hub.state()},
    }


def _versions() -> dict[str, str]:
    versions = {"normlens": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _machine() -> dict[str, str]:
    cpu = torch.device("cpu")
    facts = {
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "cpu": f"{_cpu_name()}, {_cores()} cores",
        "threads": f"{torch.get_num_threads()} (torch)",
        "free memory": _gib(free_memory(cpu)),
    }
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        free = _gib(free_memory(torch.device("cuda", index)))
        facts[f"cuda:{index}"] = f"{device.name}, {_gib(device.total_memory)}, {free} free"
    if not torch.cuda.is_available():
        facts["cuda"] = "none"
    facts["mps"] = "available" if torch.backends.mps.is_available() else "none"
    return facts


def _cores() -> int:
    """Cores that this process may use, which a container may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _embedded() -> dict[str, str]:
    return {
        model.name: "installed" if model.installed else f"not installed; run: {model.install_hint}"
        for model in EMBEDDED.values()
    }


# The numbers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """One tiny model's maps against the independent computation."""

    model_type: str
    completeness: float
    tolerance: float
    difference: float  # worst relative difference of any map from its materialised counterpart

    @property
    def passed(self) -> bool:
        # Written so that NaN fails.
        return self.completeness <= self.tolerance and self.difference <= AGREEMENT


def self_check() -> list[Check]:
    """Maps of a tiny encoder and a tiny decoder, computed twice."""
    return [_check("bert", _bert_parts), _check("llama", _llama_parts)]


def _check(model_type: str, parts: Callable[[Any, Tensor, Tensor], Iterator[Tensor]]) -> Check:
    # Both layers are compared, because their inputs have different norms.
    model = tiny_model(model_type).double()
    maps: Any = Lens(model).maps(input_ids=TOKENS)
    with torch.no_grad():
        seen = model(torch.tensor([TOKENS]), output_attentions=True, output_hidden_states=True)
    worst = 0.0
    names = [scope for scope in maps.scopes if scope.endswith("-N")]
    for layer, block in enumerate(_blocks(model)):
        x, alpha = seen.hidden_states[layer][0], seen.attentions[layer][0]
        with torch.no_grad():
            norms = [part.norm(dim=-1).numpy() for part in parts(block, x, alpha)]
        for scope, expected in zip(names, norms, strict=True):
            worst = max(worst, _difference(maps[scope][layer], expected))
    return Check(model_type, maps.completeness, maps.provenance["tolerance"], worst)


def _blocks(model: Any) -> Any:
    return model.encoder.layer if hasattr(model, "encoder") else model.layers


def _difference(norms: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of any entry, relative to the largest entry."""
    error = float(np.abs(norms - expected).max() / np.abs(expected).max())
    return error if np.isfinite(error) else float("inf")


def _bert_parts(block: Any, x: Tensor, alpha: Tensor) -> Iterator[Tensor]:
    """F_i(x_j) behind ATTN, RES, LN, FF, RES and LN of a BERT layer, each (i, j, d)."""
    attention, output = block.attention.self, block.attention.output
    n, heads = len(x), attention.num_attention_heads
    value = attention.value(x).view(n, heads, -1)
    into = output.dense.weight.T.view(heads, value.shape[-1], -1)
    owned = torch.einsum("hij,jhe,hed->ijd", alpha, value, into)
    bias = output.dense.bias.expand(n, -1)
    yield owned

    owned = owned + torch.eye(n, dtype=x.dtype)[:, :, None] * x
    yield owned

    owned, bias = _layer_norm(owned, bias, output.LayerNorm)
    yield owned
    saved = owned, bias

    up, down = block.intermediate.dense, block.output.dense
    z = up(owned.sum(1) + bias)
    ratio = torch.nn.functional.gelu(z) / z  # GELU is 0 at 0, so this is its mean slope from there
    bias = ((bias @ up.weight.T + up.bias) * ratio) @ down.weight.T + down.bias
    owned = ((owned @ up.weight.T) * ratio[:, None]) @ down.weight.T
    yield owned

    owned, bias = owned + saved[0], bias + saved[1]
    yield owned

    owned, _ = _layer_norm(owned, bias, block.output.LayerNorm)
    yield owned


def _layer_norm(owned: Tensor, bias: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    deviation = ((owned.sum(1) + bias).var(-1, correction=0) + norm.eps).sqrt()[:, None]
    owned = (owned - owned.mean(-1, keepdim=True)) / deviation[:, None] * norm.weight
    return owned, (bias - bias.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias


def _llama_parts(block: Any, x: Tensor, alpha: Tensor) -> Iterator[Tensor]:
    """F_i(x_j) behind ATTN, RES, LN, FF and RES of a Llama layer, each (i, j, d)."""
    attention, mlp = block.self_attn, block.mlp
    n, heads = len(x), alpha.shape[0]
    s = x / _rms(x, block.input_layernorm) * block.input_layernorm.weight
    value = attention.v_proj(s).view(n, -1, attention.head_dim)
    value = value.repeat_interleave(heads // value.shape[1], dim=1)
    into = attention.o_proj.weight.T.view(heads, attention.head_dim, -1)
    owned = torch.einsum("hij,jhe,hed->ijd", alpha, value, into)
    bias = attention.o_proj.bias.expand(n, -1)
    yield owned

    owned = owned + torch.eye(n, dtype=x.dtype)[:, :, None] * x
    saved = owned
    yield owned

    norm = block.post_attention_layernorm
    rms = _rms(owned.sum(1) + bias, norm)
    owned, bias = owned / rms[:, None] * norm.weight, bias / rms * norm.weight
    yield owned

    y = owned.sum(1) + bias
    of_gate, of_up = _gated_slopes(mlp.gate_proj(y), mlp.up_proj(y))
    hidden = (owned @ mlp.gate_proj.weight.T) * of_gate[:, None]
    hidden = hidden + (owned @ mlp.up_proj.weight.T) * of_up[:, None]
    owned = hidden @ mlp.down_proj.weight.T
    yield owned

    yield owned + saved


def _rms(y: Tensor, norm: Any) -> Tensor:
    return (y.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()


def _gated_slopes(a: Tensor, u: Tensor, nodes: int = 64) -> tuple[Tensor, Tensor]:
    """``u ∫ α g′(αa) dα`` and ``∫ g(αa) dα`` of SiLU over 0 … 1, by quadrature."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    of_gate, of_up = torch.zeros_like(a), torch.zeros_like(a)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        t = point * a
        gate = t.sigmoid()
        of_gate += weight * point * gate * (1 + t * (1 - gate)) * u
        of_up += weight * t * gate
    return of_gate, of_up
