"""GPT-Neo: GPT-2's block with unfused projections and local attention in every other layer."""

from __future__ import annotations

from typing import Any

from normlens.components import Attention
from normlens.models.base import linear, register
from normlens.models.gpt2 import GPT2


@register("gpt_neo")
class GPTNeo(GPT2):
    causal = True  # each layer keeps a triangle of its own, whatever the configuration asks for

    def window(self, block: Any) -> int | None:
        return self.config.window_size if block.attn.attention_type == "local" else None

    def attention(self, block: Any) -> Attention:
        attention = block.attn.attention
        return Attention(
            value=linear(attention.v_proj),
            output=linear(attention.out_proj),
            heads=attention.num_heads,
            groups=attention.num_heads,
            weights=attention,
            module=attention.out_proj,
        )
