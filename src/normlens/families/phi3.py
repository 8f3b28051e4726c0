"""Phi-3 and Phi-4: Llama's block with fused projections."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Mistral
from normlens.layers import Attention, FeedForward
from normlens.models.base import attention_of, columns, fused_gate, linear, register
from normlens.models.tiny import DECODER


@register("phi3", tiny=dict(DECODER, num_key_value_heads=2, sliding_window=3))
class Phi3(Mistral):
    def attention(self, block: Any) -> Attention:
        attention, config = block.self_attn, self.config
        values = config.num_key_value_heads * attention.head_dim
        width = linear(attention.qkv_proj).weight.shape[1]
        return attention_of(
            attention,
            columns(attention.qkv_proj, width - values, width),
            attention.o_proj,
            config.num_attention_heads,
            config.num_key_value_heads,
        )

    def feed_forward(self, block: Any) -> FeedForward:
        return fused_gate(block.mlp.gate_up_proj, block.mlp.down_proj, self.activation)
