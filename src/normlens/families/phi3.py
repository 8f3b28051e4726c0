"""Phi-3 and Phi-4: Llama's block with fused projections."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Mistral
from normlens.layers import Attention, FeedForward
from normlens.models.base import columns, linear, register
from normlens.models.tiny import DECODER


@register("phi3", tiny=dict(DECODER, num_key_value_heads=2, sliding_window=3))
class Phi3(Mistral):
    def attention(self, block: Any) -> Attention:
        attention, config = block.self_attn, self.config
        values = config.num_key_value_heads * attention.head_dim
        width = linear(attention.qkv_proj).weight.shape[1]
        return Attention(
            value=columns(attention.qkv_proj, width - values, width),
            output=linear(attention.o_proj),
            heads=config.num_attention_heads,
            groups=config.num_key_value_heads,
            weights=attention,
            module=attention.o_proj,
        )

    def feed_forward(self, block: Any) -> FeedForward:
        return fused_gate(block.mlp, self.activation)


def fused_gate(mlp: Any, activation: str) -> FeedForward:
    """A gated block whose first projection gives the gate and then the values that it gates."""
    m = linear(mlp.down_proj).weight.shape[0]
    return FeedForward(
        gate=columns(mlp.gate_up_proj, 0, m),
        up=columns(mlp.gate_up_proj, m, 2 * m),
        down=linear(mlp.down_proj),
        activation=activation,
        module=mlp.down_proj,
    )
