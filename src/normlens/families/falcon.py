"""Falcon: branches side by side behind one norm or two, or one after the other; fused values."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, Step
from normlens.models import base


@base.register(
    "falcon",
    tiny=dict(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_kv_heads=2,
        ffn_hidden_size=24,
        new_decoder_architecture=True,
        bias=True,
        max_position_embeddings=48,
        bos_token_id=2,
        eos_token_id=2,
    ),
)
class Falcon(base.Decoder):
    layers_path = "h"
    norms = "input_layernorm", "post_attention_layernorm"
    norm_first = True
    final_norm = "ln_f"

    def max_positions(self) -> int | None:
        return None if self.config.alibi else self.config.max_position_embeddings

    def attention(self, block: Any) -> Attention:
        attention = block.self_attention
        heads, groups = attention.num_heads, attention.num_kv_heads
        # Each group has the queries of its heads, then one key and one value.
        return base.attention_of(
            attention,
            base.interleaved_values(attention.query_key_value, groups, heads // groups + 2),
            attention.dense,
            heads,
            groups,
        )

    def feed_forward(self, block: Any) -> FeedForward:
        up, down = block.mlp.dense_h_to_4h, block.mlp.dense_4h_to_h
        return base.feed_forward_of(up, down, self.config.activation)

    def steps(self, block: Any) -> list[Step]:
        if not (self.config.new_decoder_architecture or self.config.parallel_attn):
            return super().steps(block)
        two = hasattr(block, "ln_mlp")
        norm = base.layer_norm(block.ln_attn if two else block.input_layernorm)
        other = base.layer_norm(block.ln_mlp) if two else norm
        return base.side_by_side(norm, self.attention(block), self.feed_forward(block), other)
