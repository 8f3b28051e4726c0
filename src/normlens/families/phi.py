"""Phi-1, 1.5 and 2: attention and feed-forward side by side behind one shared norm."""

from __future__ import annotations

from typing import Any

from normlens.layers import Branch, ParallelFeedForward, Residual, Step
from normlens.models.base import Decoder, attention_of, feed_forward_of, layer_norm, register
from normlens.models.tiny import DECODER


@register("phi", tiny=DECODER)
class Phi(Decoder):
    layers_path = "layers"
    final_norm = "final_layernorm"

    def steps(self, block: Any) -> list[Step]:
        attention, mlp = block.self_attn, block.mlp
        feed_forward = feed_forward_of(mlp.fc1, mlp.fc2, self.config.hidden_act)
        return [
            Branch(),
            layer_norm(block.input_layernorm),
            attention_of(
                attention,
                attention.v_proj,
                attention.dense,
                self.config.num_attention_heads,
                self.config.num_key_value_heads,
            ),
            ParallelFeedForward(feed_forward, layer_norm(block.input_layernorm)),
            Residual(),
        ]
