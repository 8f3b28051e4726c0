"""The state of this installation, and a check of its numbers against an independent computation.

The check takes a tiny BERT and a tiny Llama and computes their maps a second time, straight from
the definition: every part F_i(x_j) as a separate vector, in float64, from the model's weights. It
shares no code with `normlens.frozen`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

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
    versions = {"normlens": __version__, "python": platform.python_version()}
    for package in PACKAGES.split():
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    models = {
        model.name: "installed" if model.installed else f"not installed; run: {model.install_hint}"
        for model in EMBEDDED.values()
    }
    return {
        "versions": versions,
        "machine": _machine(),
        "models": {**models, "Hugging Face hub": hub.state()},
    }


def _machine() -> dict[str, str]:
    # A container may limit the cores that this process may use.
    limited = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if limited else os.cpu_count() or 1
    facts = {
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "cpu": f"{_cpu_name()}, {cores} cores",
        "threads": f"{torch.get_num_threads()} (torch)",
        "free memory": _gib(free_memory(torch.device("cpu"))),
    }
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        free = _gib(free_memory(torch.device("cuda", index)))
        facts[f"cuda:{index}"] = f"{device.name}, {_gib(device.total_memory)}, {free} free"
    if not torch.cuda.is_available():
        facts["cuda"] = "none"
    facts["mps"] = "available" if torch.backends.mps.is_available() else "none"
    return facts


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine() or "unknown")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


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
    return [_check("bert"), _check("llama")]


def _check(model_type: str) -> Check:
    # Both layers are compared, because their inputs have different norms.
    model = tiny_model(model_type).double()
    maps: Any = Lens(model).maps(input_ids=TOKENS)
    names = [scope for scope in maps.scopes if scope.endswith("-N")]
    differences = []
    with torch.no_grad():
        seen = model(torch.tensor([TOKENS]), output_attentions=True, output_hidden_states=True)
        blocks = model.encoder.layer if model_type == "bert" else model.layers
        for layer, block in enumerate(blocks):
            x, alpha = seen.hidden_states[layer][0], seen.attentions[layer][0]
            for scope, vectors in zip(names, _parts(block, alpha, x), strict=True):
                expected = vectors.norm(dim=-1).T.numpy()
                differences.append(np.abs(maps[scope][layer] - expected).max() / expected.max())
    worst = float(np.max(differences))  # NaN if one of them is
    return Check(model_type, maps.completeness, maps.provenance["tolerance"], worst)


def _parts(block: Any, alpha: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """F_i(x_j) (j, i, d) behind each component.

    What `_components` computes is affine in values and x, because it takes deviations and slopes
    as constants. F_i(x_j) is then the derivative in the direction of what token j gives: its
    vector, and its value vector with the bias, which belongs to the tokens.
    """
    if hasattr(block, "attention"):
        value = block.attention.self.value(x)
    else:
        value = block.self_attn.v_proj(_normalised(x, block.input_layernorm))

    def vectors(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(_components(block, alpha, *given))

    def of_token(alone: Tensor) -> tuple[Tensor, ...]:
        return torch.func.jvp(vectors, (value, x), (alone * value, alone * x))[1]

    return torch.func.vmap(of_token)(torch.eye(len(x), dtype=x.dtype)[..., None])


def _components(block: Any, alpha: Tensor, value: Tensor, x: Tensor) -> Iterator[Tensor]:
    """The vectors behind ATTN, RES, LN, FF and RES of a layer, and behind the last LN of BERT's."""
    is_bert = hasattr(block, "attention")
    if is_bert:
        output, norm = block.attention.output.dense, block.attention.output.LayerNorm
        inputs, down = [block.intermediate.dense], block.output.dense
    else:
        output, norm, mlp = block.self_attn.o_proj, block.post_attention_layernorm, block.mlp
        inputs, down = [mlp.gate_proj, mlp.up_proj], mlp.down_proj
    grouped = value.unflatten(-1, (-1, HEAD_WIDTH))  # some heads may share a group of values
    each = grouped.repeat_interleave(len(alpha) // grouped.shape[1], dim=1)
    y = output(torch.einsum("hij,jhe->ihe", alpha, each).flatten(-2))
    yield y
    saved = y + x
    yield saved
    y = _normalised(saved, norm)
    yield y
    hidden = [project(y) for project in inputs]
    slopes = _mean_slopes(gelu if is_bert else _gated, [z.detach() for z in hidden])
    fed = down(sum(z * slope for z, slope in zip(hidden, slopes, strict=True)))
    yield fed
    y = fed + (y if is_bert else saved)
    yield y
    if is_bert:
        yield _normalised(y, block.output.LayerNorm)


def _normalised(y: Tensor, norm: Any) -> Tensor:
    """LayerNorm or RMSNorm with its deviation as a constant."""
    if not hasattr(norm, "bias"):
        square = y.square().mean(-1, keepdim=True)
        return y / (square + norm.variance_epsilon).sqrt().detach() * norm.weight
    deviation = (y.var(-1, correction=0, keepdim=True) + norm.eps).sqrt().detach()
    return (y - y.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate) * up


def _mean_slopes(activation: Callable[..., Tensor], at: Sequence[Tensor]) -> Sequence[Tensor]:
    """``∫ ∂f(t z) dt`` of an activation over 0 … 1 for each input, by quadrature."""
    points, weights = (torch.from_numpy(each) for each in np.polynomial.legendre.leggauss(64))
    t, weight = (points[:, None, None] + 1) / 2, weights[:, None, None] / 2

    def integral(*z: Tensor) -> Tensor:  # whose derivative by z that is
        return (weight / t * activation(*(t * each for each in z))).sum()

    return torch.func.grad(integral, tuple(range(len(at))))(*at)
