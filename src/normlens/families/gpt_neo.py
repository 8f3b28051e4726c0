"""GPT-Neo: GPT-2's block with unfused projections and local attention in every other layer."""

from typing import Any

from normlens.families.gpt2 import GPT2
from normlens.layers import Linear
from normlens.models.base import linear, register


@register(
    "gpt_neo",
    tiny=dict(
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
)
class GPTNeo(GPT2):
    attention_paths = "attn.attention", "attn.attention.v_proj", "attn.attention.out_proj"
    causal = True  # each layer has a triangular mask, whatever the configuration says

    def window(self, block: Any) -> int | None:
        return self.config.window_size if block.attn.attention_type == "local" else None

    def value(self, module: Any) -> Linear:
        return linear(module)
