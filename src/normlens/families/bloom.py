"""BLOOM: pre-LN with ALiBi, a special GELU, and residuals that may branch behind the norm."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, Branch, FeedForward, Residual, Step
from normlens.models import base


@base.register("bloom", tiny=dict(vocab_size=64, hidden_size=16, n_layer=2, n_head=4))
class Bloom(base.Decoder):
    layers_path = "h"
    norms = "input_layernorm", "post_attention_layernorm"
    norm_first = True
    final_norm = "ln_f"

    def max_positions(self) -> None:
        return None  # ALiBi has no position table

    def attention(self, block: Any) -> Attention:
        attention = block.self_attention
        heads = attention.num_heads
        value = base.interleaved_values(attention.query_key_value, heads)
        # The attention module itself adds the residual as well.
        return base.attention_of(attention.attention_dropout, value, attention.dense, heads)

    def feed_forward(self, block: Any) -> FeedForward:
        return base.feed_forward_of(block.mlp.dense_h_to_4h, block.mlp.dense_4h_to_h, "bloom_gelu")

    def steps(self, block: Any) -> list[Step]:
        if not block.apply_residual_connection_post_layernorm:
            return super().steps(block)
        (first,), (second,) = self.norms_at(block, self.norms)
        attended: list[Step] = [first, Branch(), self.attention(block), Residual()]
        return [*attended, second, Branch(), self.feed_forward(block), Residual()]
