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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normlens._version import __version__
from normlens.lens import Lens
from normlens.loading import hub
from normlens.loading.embedded import EMBEDDED
from normlens.models.tiny import tiny_model
from normlens.plan.costs import free_memory

PACKAGES = (
    "torch transformers tokenizers numpy scipy pandas pyarrow safetensors huggingface_hub "
    "matplotlib gguf accelerate"
)
#: Both computations run in float64 and differ only in the order of their sums.
AGREEMENT = 1e-8
TOKENS = [5, 17, 3, 42, 17, 8, 60]
HEAD_WIDTH = 4  # of both tiny models


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
    for package in PACKAGES.split():
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
    return [_check("bert", _bert), _check("llama", _llama)]


#: The vectors behind each component of a layer, of α, its value vectors and its input.
Run = Callable[[Any, Tensor, Tensor, Tensor], Iterator[Tensor]]


def _check(model_type: str, run: Run) -> Check:
    # Both layers are compared, because their inputs have different norms.
    model = tiny_model(model_type).double()
    maps: Any = Lens(model).maps(input_ids=TOKENS)
    names = [scope for scope in maps.scopes if scope.endswith("-N")]
    worst = 0.0
    with torch.no_grad():
        seen = model(torch.tensor([TOKENS]), output_attentions=True, output_hidden_states=True)
        blocks = model.encoder.layer if model_type == "bert" else model.layers
        for layer, block in enumerate(blocks):
            x, alpha = seen.hidden_states[layer][0], seen.attentions[layer][0]
            norms = _part_norms(partial(run, block, alpha), _values(block, x), x)
            for scope, expected in zip(names, norms, strict=True):
                worst = max(worst, _difference(maps[scope][layer], expected.numpy()))
    return Check(model_type, maps.completeness, maps.provenance["tolerance"], worst)


def _part_norms(run: Callable[[Tensor, Tensor], Iterator[Tensor]], *given: Tensor) -> list[Tensor]:
    """‖F_i(x_j)‖ (i, j) behind each component.

    What `run` computes is affine in its arguments, because it takes deviations and slopes as
    constants. F_i(x_j) is then the derivative in the direction of what token j gives.
    """

    def all_of(*tokens: Tensor) -> tuple[Tensor, ...]:
        return tuple(run(*tokens))

    columns = []
    for j in range(len(TOKENS)):
        token = torch.eye(len(TOKENS), dtype=torch.float64)[:, j, None]
        alone = tuple(token * each for each in given)
        columns.append([part.norm(dim=-1) for part in torch.func.jvp(all_of, given, alone)[1]])
    return [torch.stack(of_scope, dim=1) for of_scope in zip(*columns, strict=True)]


def _difference(norms: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of any entry, relative to the largest entry."""
    error = float(np.abs(norms - expected).max() / np.abs(expected).max())
    return error if np.isfinite(error) else float("inf")


def _values(block: Any, x: Tensor) -> Tensor:
    """The value vectors, with their bias, which belongs to the tokens."""
    if hasattr(block, "attention"):
        return block.attention.self.value(x)
    return block.self_attn.v_proj(_rms_norm(x, block.input_layernorm))


def _attended(value: Tensor, alpha: Tensor) -> Tensor:
    """What the heads read (i, heads · d_head); some heads may share a group of values."""
    grouped = value.unflatten(-1, (-1, HEAD_WIDTH))
    each = grouped.repeat_interleave(len(alpha) // grouped.shape[1], dim=1)
    return torch.einsum("hij,jhe->ihe", alpha, each).flatten(-2)


def _bert(block: Any, alpha: Tensor, value: Tensor, x: Tensor) -> Iterator[Tensor]:
    """ATTN, RES, LN, FF, RES and LN of a BERT layer."""
    output, last = block.attention.output, block.output
    y = output.dense(_attended(value, alpha))
    yield y
    y = y + x
    yield y
    y = _layer_norm(y, output.LayerNorm)
    yield y
    z = block.intermediate.dense(y)
    # GELU is 0 at 0, so this is its mean slope from there.
    fed = last.dense(z * (torch.nn.functional.gelu(z) / z).detach())
    yield fed
    y = y + fed
    yield y
    yield _layer_norm(y, last.LayerNorm)


def _layer_norm(y: Tensor, norm: Any) -> Tensor:
    deviation = (y.var(-1, correction=0, keepdim=True) + norm.eps).sqrt().detach()
    return (y - y.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias


def _llama(block: Any, alpha: Tensor, value: Tensor, x: Tensor) -> Iterator[Tensor]:
    """ATTN, RES, LN, FF and RES of a Llama layer."""
    mlp = block.mlp
    y = block.self_attn.o_proj(_attended(value, alpha))
    yield y
    saved = y + x
    yield saved
    y = _rms_norm(saved, block.post_attention_layernorm)
    yield y
    gate, up = mlp.gate_proj(y), mlp.up_proj(y)
    of_gate, of_up = _gated_slopes(gate.detach(), up.detach())
    fed = mlp.down_proj(gate * of_gate + up * of_up)
    yield fed
    yield fed + saved


def _rms_norm(y: Tensor, norm: Any) -> Tensor:
    mean_square = y.square().mean(-1, keepdim=True)
    return y / (mean_square + norm.variance_epsilon).sqrt().detach() * norm.weight


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
