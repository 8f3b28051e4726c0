"""Pictures and sounds for tiny models that see or hear."""

from __future__ import annotations

from typing import Any

import torch

from normlens.models import adapt
from normlens.models.parts import ImageEncoder
from normlens.models.tiny import tiny_signal_families

SEEING = [name for name in tiny_signal_families() if name not in (
    "wav2vec2", "hubert", "data2vec-audio", "unispeech", "unispeech-sat"
)]  # fmt: skip
HEARING = [name for name in tiny_signal_families() if name not in SEEING]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def example(family: str, seed: int = 0) -> torch.Tensor:
    """Pixel values of the model's own size, or input values of six frames."""
    return noise(3, 12, 12, seed=seed) if family in SEEING else noise(270, seed=seed)


def other_example(family: str) -> torch.Tensor:
    """A picture that is no square, whose right edge no patch covers; a shorter sound."""
    return noise(3, 8, 21, seed=5) if family in SEEING else noise(170, seed=5)


def call(model: Any, values: torch.Tensor) -> dict[str, Any]:
    """What the model is called with, said by hand."""
    batch = values[None].to(next(model.parameters()).dtype)
    if not isinstance(adapt(model), ImageEncoder):
        return {"input_values": batch}
    inputs: dict[str, Any] = {"pixel_values": batch}
    kind = model.config.model_type
    if kind == "vit_mae":  # which shuffles patches by this
        inputs["noise"] = torch.arange(batch[0, 0].numel() // 16)[None].double()
    interpolated = ("vit", "vit_msn", "vit_mae", "deit", "ijepa")
    if values.shape[-1] != 12 and (kind in interpolated or kind.endswith("vision_model")):
        inputs["interpolate_pos_encoding"] = True
    return inputs
