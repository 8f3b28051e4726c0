"""GPT-BigCode (StarCoder, SantaCoder): GPT-2's block with one key and value for all heads."""

from __future__ import annotations

from typing import Any

from normlens.families.gpt2 import GPT2
from normlens.layers import Attention
from normlens.models.base import columns, interleaved_values, linear, register
from normlens.models.tiny import GPT


@register("gpt_bigcode", tiny=GPT)
class GPTBigCode(GPT2):
    def attention(self, block: Any) -> Attention:
        attention = block.attn
        d, width = attention.embed_dim, attention.kv_dim
        value = (
            columns(attention.c_attn, d + width, d + 2 * width)
            if attention.multi_query
            else interleaved_values(attention.c_attn, attention.num_heads)
        )
        return Attention(
            value=value,
            output=linear(attention.c_proj),
            heads=attention.num_heads,
            groups=attention.kv_heads,
            weights=attention,
            module=attention.c_proj,
        )
