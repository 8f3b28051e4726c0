"""A tiny, randomly initialised model of every family: for tables, self-checks and tests.

A family is registered with its tiny configuration (`register(…, tiny=…)`). Sizes that many of them
share are here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from normlens.errors import InputError
from normlens.models.base import supported_families, tiny_settings
from normlens.models.unwrapping import model_of

_SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24)
_TEXT = dict(_SIZES, vocab_size=64, max_position_embeddings=48, eos_token_id=2)
ENCODER = dict(_TEXT, pad_token_id=1, bos_token_id=0)
DECODER = dict(_TEXT, pad_token_id=0, bos_token_id=1)
GROUPED = dict(DECODER, num_key_value_heads=2, head_dim=4)
GPT = dict(
    vocab_size=64, n_embd=16, n_layer=2, n_head=4, n_positions=48, bos_token_id=2, eos_token_id=2
)
#: Pictures of 12×12 pixels, nine patches.
IMAGE = dict(_SIZES, image_size=12, patch_size=4)
#: 40 samples make a frame.
SOUND = dict(
    _SIZES,
    vocab_size=12,
    conv_dim=(8, 8),
    conv_kernel=(10, 4),
    conv_stride=(10, 4),
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    classifier_proj_size=8,
)
#: A token uses two of five experts; the names of their number and size differ.
EXPERTS = dict(
    GROUPED,
    num_experts_per_tok=2,
    num_experts=5,
    num_local_experts=5,
    n_routed_experts=5,
    moe_intermediate_size=12,
)


def tiny_families() -> list[str]:
    """Every model type that reads one text and has a tiny configuration, by name."""
    return _with_tiny(two_stacks=False, takes_signals=False)


def tiny_encoder_decoders() -> list[str]:
    """Every encoder–decoder that was registered with a tiny configuration, by name."""
    return _with_tiny(two_stacks=True, takes_signals=False)


def tiny_signal_families() -> list[str]:
    """Every model type that sees or hears and has a tiny configuration, by name."""
    return _with_tiny(two_stacks=False, takes_signals=True)


def _with_tiny(*, two_stacks: bool, takes_signals: bool) -> list[str]:
    return sorted(
        name
        for name, adapter in supported_families().items()
        if (adapter.two_stacks, hasattr(adapter, "argument")) == (two_stacks, takes_signals)
        and tiny_settings(name) is not None
    )


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """The tiny configuration of a family."""
    from transformers import AutoConfig

    settings = tiny_settings(model_type)
    if settings is None:
        raise InputError(
            f"model type {model_type!r} has no tiny configuration; register it with one "
            f'(@normlens.register("{model_type}", tiny={{…}})), or choose one of: '
            f"{', '.join(sorted([*tiny_families(), *tiny_encoder_decoders()]))}"
        )
    return AutoConfig.for_model(model_type, **{**settings, **overrides})


def tiny_model(model_type: str, seed: int = 0, **overrides: Any) -> Any:
    """A tiny model whose biases and norm weights are random too, not zeros and ones."""
    model = model_of(tiny_config(model_type, **overrides)).eval()
    scramble(model, seed)
    return model


def scramble(model: nn.Module, seed: int = 0) -> None:
    """Fill all parameters with random values: zero biases would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_norm else 0.3 * noise)
