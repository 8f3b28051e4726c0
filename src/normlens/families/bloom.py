"""BLOOM: pre-LN with ALiBi, a special GELU, and residuals that may branch behind the norm."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, Branch, FeedForward, HeadStep, Residual, Step
from normlens.models.base import (
    Decoder,
    interleaved_values,
    layer_norm,
    linear,
    register,
    sublayers,
)


@register("bloom", tiny=dict(vocab_size=64, hidden_size=16, n_layer=2, n_head=4))
class Bloom(Decoder):
    def blocks(self) -> list[Any]:
        return list(self.model.h)

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.ln_f)]

    def max_positions(self) -> None:
        return None  # ALiBi has no position table

    def steps(self, block: Any) -> list[Step]:
        attention, mlp = block.self_attention, block.mlp
        attend = Attention(
            value=interleaved_values(attention.query_key_value, attention.num_heads),
            output=linear(attention.dense),
            heads=attention.num_heads,
            groups=attention.num_heads,
            weights=attention.attention_dropout,
            module=attention.dense,  # the attention module adds the residual as well
        )
        feed_forward = FeedForward(
            up=linear(mlp.dense_h_to_4h),
            down=linear(mlp.dense_4h_to_h),
            activation="bloom_gelu",
            module=mlp.dense_4h_to_h,
        )
        first, second = (
            layer_norm(block.input_layernorm),
            layer_norm(block.post_attention_layernorm),
        )
        if block.apply_residual_connection_post_layernorm:
            attention_steps: list[Step] = [first, Branch(), attend, Residual()]
            return [*attention_steps, second, Branch(), feed_forward, Residual()]
        return sublayers([(first, attend), (second, feed_forward)], norm_first=True)
