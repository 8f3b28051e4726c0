"""GPT-BigCode (StarCoder, SantaCoder): GPT-2's block with one key and value for all heads."""

from typing import Any

from normlens.families.gpt2 import GPT2
from normlens.layers import Attention
from normlens.models.base import attention_of, columns, interleaved_values, register
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
        return attention_of(
            attention, value, attention.c_proj, attention.num_heads, attention.kv_heads
        )
