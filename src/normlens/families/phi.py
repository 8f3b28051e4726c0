"""Phi-1, 1.5 and 2: attention and feed-forward side by side behind one shared norm."""

from __future__ import annotations

from typing import Any

from normlens.layers import Step
from normlens.models import base
from normlens.models.tiny import DECODER


@base.register("phi", tiny=DECODER)
class Phi(base.Decoder):
    layers_path = "layers"
    final_norm = "final_layernorm"

    def steps(self, block: Any) -> list[Step]:
        attention, mlp, config = block.self_attn, block.mlp, self.config
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        return base.side_by_side(
            base.layer_norm(block.input_layernorm),
            base.attention_of(attention, attention.v_proj, attention.dense, heads, groups),
            base.feed_forward_of(mlp.fc1, mlp.fc2, self.activation),
        )
