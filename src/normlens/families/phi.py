"""Phi-1, 1.5 and 2: attention and feed-forward side by side behind one shared norm."""

from __future__ import annotations

from typing import Any

from normlens.layers import (
    Attention,
    Branch,
    FeedForward,
    HeadStep,
    ParallelFeedForward,
    Residual,
    Step,
)
from normlens.models.base import Decoder, layer_norm, linear, register
from normlens.models.tiny import DECODER


@register("phi", tiny=DECODER)
class Phi(Decoder):
    def blocks(self) -> list[Any]:
        return list(self.model.layers)

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.final_layernorm)]

    def steps(self, block: Any) -> list[Step]:
        attention, mlp = block.self_attn, block.mlp
        feed_forward = FeedForward(
            up=linear(mlp.fc1),
            down=linear(mlp.fc2),
            activation=self.config.hidden_act,
            module=mlp.fc2,
        )
        return [
            Branch(),
            layer_norm(block.input_layernorm),
            Attention(
                value=linear(attention.v_proj),
                output=linear(attention.dense),
                heads=self.config.num_attention_heads,
                groups=self.config.num_key_value_heads,
                weights=attention,
                module=attention.dense,
            ),
            ParallelFeedForward(feed_forward, layer_norm(block.input_layernorm)),
            Residual(),
        ]
