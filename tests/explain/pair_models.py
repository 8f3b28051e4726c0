"""Every family of encoder–decoders with its head, tiny, and what such models are asked about."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normlens.models.tiny import scramble, tiny_config, tiny_encoder_decoders

FAMILIES = tiny_encoder_decoders()
IDS = [5, 17, 31, 8, 44]
TARGET = [2, 9, 12, 30, 41, 6]
_FRAMES = torch.randn(6, 18, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def generating(family: str, dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    """A tiny model with its head; every bias is random, also those that are no parameters."""
    import transformers

    task = "SpeechSeq2Seq" if family == "whisper" else "Seq2SeqLM"
    kind = getattr(transformers, f"AutoModelFor{task}")
    model = kind.from_config(tiny_config(family, **settings), attn_implementation="eager").eval()
    scramble(model, 3)
    if hasattr(model, "final_logits_bias"):
        bias = model.final_logits_bias
        bias.copy_(torch.randn(bias.shape, generator=torch.Generator().manual_seed(4)))
    return model.to(dtype)


def source_of(family: str, ids: list[int] = IDS) -> dict[str, Any]:
    """The arguments of `lens.explain` that are the source."""
    return {"input_features": _FRAMES} if family == "whisper" else {"input_ids": ids}


def model_inputs(
    family: str, target: list[int] = TARGET, ids: list[int] = IDS
) -> dict[str, Tensor]:
    """The arguments of the model's own call."""
    source = {"input_features": _FRAMES[None]} if family == "whisper" else {}
    source = source or {"input_ids": torch.tensor([ids])}
    return {**source, "decoder_input_ids": torch.tensor([target])}
