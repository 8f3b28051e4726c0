"""GLM: Llama's block with a fused gate; GLM 4 adds a norm behind each branch."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Llama
from normlens.layers import FeedForward
from normlens.models.base import fused_gate, register
from normlens.models.tiny import GROUPED


@register("glm", tiny=dict(GROUPED, attention_bias=True))
class Glm(Llama):
    def feed_forward(self, block: Any) -> FeedForward:
        return fused_gate(block.mlp.gate_up_proj, block.mlp.down_proj, self.activation)


@register("glm4", tiny=dict(GROUPED, attention_bias=True))
class Glm4(Glm):
    branch_norms = "post_self_attn_layernorm", "post_mlp_layernorm"
