"""A tiny, randomly initialised model of every family: for tables, self-checks and tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_ENCODER = dict(
    vocab_size=64,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=48,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
)
_GPT = dict(
    vocab_size=64, n_embd=16, n_layer=2, n_head=4, n_positions=48, bos_token_id=2, eos_token_id=2
)
_DECODER = dict(
    vocab_size=64,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=48,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
_GROUPED = dict(_DECODER, num_key_value_heads=2, head_dim=4)

EXAMPLES: dict[str, dict[str, Any]] = {
    "bert": _ENCODER,
    "roberta": _ENCODER,
    "xlm-roberta": _ENCODER,
    "camembert": _ENCODER,
    "distilbert": dict(
        vocab_size=64, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=48
    ),
    "albert": dict(_ENCODER, embedding_size=8, num_hidden_layers=3),
    "electra": dict(_ENCODER, embedding_size=8),
    "mpnet": _ENCODER,
    "deberta-v2": dict(
        _ENCODER,
        relative_attention=True,
        position_buckets=4,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
    "modernbert": dict(
        _ENCODER,
        num_hidden_layers=3,
        local_attention=4,
        global_attn_every_n_layers=3,
        mlp_bias=True,
        norm_bias=True,
        attention_bias=True,
        cls_token_id=0,
        sep_token_id=2,
    ),
    "gpt2": _GPT,
    "opt": dict(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=24,
        max_position_embeddings=48,
        word_embed_proj_dim=16,
    ),
    "gpt_neo": dict(
        vocab_size=64,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=3,
        max_position_embeddings=48,
        bos_token_id=2,
        eos_token_id=2,
    ),
    "gpt_neox": _DECODER,
    "gptj": dict(_GPT, rotary_dim=2),
    "bloom": dict(vocab_size=64, hidden_size=16, n_layer=2, n_head=4),
    "llama": dict(_GROUPED, attention_bias=True, mlp_bias=True),
    "mistral": dict(_GROUPED, sliding_window=3),
    "qwen2": dict(_GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=1),
    "qwen3": dict(_GROUPED, attention_bias=True),
    "gemma": _GROUPED,
    "gemma2": dict(_GROUPED, sliding_window=3, query_pre_attn_scalar=4),
    "gemma3_text": dict(_GROUPED, sliding_window=3, query_pre_attn_scalar=4),
    "phi": _DECODER,
    "phi3": dict(_DECODER, num_key_value_heads=2, sliding_window=3),
    "olmo2": _GROUPED,
}


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """The tiny configuration of a family."""
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **{**EXAMPLES[model_type], **overrides})


def tiny_model(model_type: str, seed: int = 0, **overrides: Any) -> Any:
    """A tiny model whose biases and norm weights are random too, not zeros and ones."""
    from transformers import AutoModel

    model = AutoModel.from_config(
        tiny_config(model_type, **overrides), attn_implementation="eager"
    ).eval()
    scramble(model, seed)
    return model


def scramble(model: nn.Module, seed: int = 0) -> None:
    """Random values everywhere: an untrained model's zero biases would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_norm else 0.3 * noise)
