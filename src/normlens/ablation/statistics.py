"""What ablations put in a component's place: means and samples of its vectors over a corpus.

A first pass over sequences of their own gathers, for each layer: the mean output of every block and
of the layer, the mean vector that each residual connection adds, the mean deviation σ of each norm,
and the same vectors at some hundred positions, which resampling draws from. All tokens count,
special ones included, because an ablation replaces a component at all of them; padding never does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from normlens.ablation.kinds import FROZEN_SIGMA, MEAN
from normlens.errors import InputError, OutputError, reason_of, system_reason

FORMAT = "normlens ablation statistics 1"

#: Positions that are kept for resampling.
RESERVOIR = 256

#: A layer and a component of it.
Where = tuple[int, str]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Means, deviations and samples of one model's components."""

    model: str
    sequences: int
    positions: int
    seed: int
    means: Mapping[Where, Tensor]  # float64 (d,)
    sigmas: Mapping[Where, float]
    samples: Mapping[Where, Tensor]  # (sample, d), in the model's precision

    def mean(self, layer: int, component: str) -> Tensor:
        """The mean vector of a component."""
        self.check(layer, component, MEAN)
        return self.means[layer, component]

    def sample(self, layer: int, component: str) -> Tensor:
        """Vectors of a component at some positions, (sample, d)."""
        self.check(layer, component, MEAN)
        return self.samples[layer, component]

    def sigma(self, layer: int, component: str) -> float:
        """The mean deviation σ of the vectors that a norm normalises."""
        self.check(layer, component, FROZEN_SIGMA)
        return self.sigmas[layer, component]

    def check(self, layer: int, component: str, kind: str) -> None:
        """Raise unless a component was gathered for a kind of ablation."""
        gathered = self.sigmas if kind == FROZEN_SIGMA else self.means
        if (layer, component) not in gathered:
            raise InputError(
                f"the statistics of {self.model} hold no {component} of layer {layer}; gather them "
                "again with this model"
            )

    @cached_property
    def digest(self) -> str:
        """A hash of all that was gathered."""
        total = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for name, tensor in sorted(self._tensors().items()):
            total.update(f"\n{name}\n{tensor.dtype}\n{tuple(tensor.shape)}\n".encode())
            total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return total.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a safetensors file."""
        metadata = self._header() | {"digest": self.digest}
        try:
            save_file(self._tensors(), path, metadata=metadata)
        except (OSError, SafetensorError) as error:
            raise OutputError(f"cannot write {str(path)!r} ({system_reason(error)})") from error

    @classmethod
    def load(cls, path: str | Path) -> Statistics:
        """Read what `save` wrote; a changed file is refused."""
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"cannot read {str(path)!r} ({reason_of(error)})") from error
        if header.get("format") != FORMAT:
            raise InputError(f"{str(path)!r} holds no ablation statistics; gather them first")
        try:
            found = cls._read(header, tensors)
            is_whole = found.digest == header["digest"]
        except (LookupError, ValueError, RuntimeError):  # of names and numbers that are none
            is_whole = False
        if not is_whole:
            raise InputError(
                f"the contents of {str(path)!r} do not match its digest; gather them again"
            )
        return found

    @classmethod
    def _read(cls, header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Statistics:
        parts: dict[str, dict[Where, Tensor]] = {"mean": {}, "sigma": {}, "sample": {}}
        for name, tensor in tensors.items():
            part, layer, component = name.split("/", 2)
            parts[part][int(layer), component] = tensor
        return cls(
            model=header["model"],
            sequences=int(header["sequences"]),
            positions=int(header["positions"]),
            seed=int(header["seed"]),
            means=parts["mean"],
            sigmas={where: float(sigma) for where, sigma in parts["sigma"].items()},
            samples=parts["sample"],
        )

    def _header(self) -> dict[str, str]:
        return {
            "format": FORMAT,
            "model": self.model,
            "sequences": str(self.sequences),
            "positions": str(self.positions),
            "seed": str(self.seed),
        }

    def _tensors(self) -> dict[str, Tensor]:
        sigmas = {where: torch.tensor([s], dtype=torch.float64) for where, s in self.sigmas.items()}
        parts = {"mean": self.means, "sigma": sigmas, "sample": self.samples}
        return {
            f"{part}/{layer}/{component}": tensor.detach().cpu().contiguous()
            for part, tensors in parts.items()
            for (layer, component), tensor in tensors.items()
        }
