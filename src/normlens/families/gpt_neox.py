"""GPT-NeoX (Pythia): attention and feed-forward side by side, or one after the other."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, Step
from normlens.models import base
from normlens.models.tiny import DECODER


@base.register("gpt_neox", tiny=DECODER)
class GPTNeoX(base.Decoder):
    layers_path = "layers"
    norms = "input_layernorm", "post_attention_layernorm"
    norm_first = True
    final_norm = "final_layer_norm"

    def attention(self, block: Any) -> Attention:
        attention, heads = block.attention, self.config.num_attention_heads
        value = base.interleaved_values(attention.query_key_value, heads)
        return base.attention_of(attention, value, attention.dense, heads)

    def feed_forward(self, block: Any) -> FeedForward:
        up, down = block.mlp.dense_h_to_4h, block.mlp.dense_4h_to_h
        return base.feed_forward_of(up, down, self.activation)

    def steps(self, block: Any) -> list[Step]:
        if not block.use_parallel_residual:
            return super().steps(block)
        (first,), (second,) = self.norms_at(block, self.norms)
        return base.side_by_side(first, self.attention(block), self.feed_forward(block), second)
