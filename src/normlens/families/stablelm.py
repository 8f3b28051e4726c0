"""StableLM: Llama's block with LayerNorms; in some sizes its branches stand side by side."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Llama
from normlens.layers import Norm, Step
from normlens.models.base import layer_norm, register, side_by_side
from normlens.models.tiny import DECODER


@register(
    "stablelm",
    tiny=dict(
        DECODER,
        num_key_value_heads=2,
        use_qkv_bias=True,
        qk_layernorm=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    ),
)
class StableLm(Llama):
    def norm(self, module: Any) -> Norm:
        return layer_norm(module)

    def steps(self, block: Any) -> list[Step]:
        if not block.use_parallel_residual:
            return super().steps(block)
        norm = self.norm(block.input_layernorm)
        return side_by_side(norm, self.attention(block), self.gated(block.mlp))
