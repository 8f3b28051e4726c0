"""GLM: Llama's block with a fused gate; GLM 4 adds a norm behind each branch."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Llama
from normlens.families.phi3 import fused_gate
from normlens.layers import Branch, FeedForward, Residual, Step
from normlens.models.base import register
from normlens.models.tiny import GROUPED


@register("glm", tiny=dict(GROUPED, attention_bias=True))
class Glm(Llama):
    def feed_forward(self, block: Any) -> FeedForward:
        return fused_gate(block.mlp, self.activation)


@register("glm4", tiny=dict(GROUPED, attention_bias=True))
class Glm4(Glm):
    def steps(self, block: Any) -> list[Step]:
        return [
            Branch(),
            self.norm(block.input_layernorm),
            self.attention(block),
            self.norm(block.post_self_attn_layernorm),
            Residual(),
            Branch(),
            self.norm(block.post_attention_layernorm),
            self.feed_forward(block),
            self.norm(block.post_mlp_layernorm),
            Residual(),
        ]
