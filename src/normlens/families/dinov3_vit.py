"""DINOv3's ViT: DINOv2's block with rotary positions, which only α knows, and registers."""

from typing import Any

from normlens.families.dinov2 import Dinov2WithRegisters
from normlens.layers import FeedForward
from normlens.models.base import feed_forward_of, register
from normlens.models.tiny import IMAGE


@register("dinov3_vit", tiny=dict(IMAGE, use_gated_mlp=True, num_register_tokens=2))
class DINOv3ViT(Dinov2WithRegisters):
    layers_path = "model.layer"
    final_norm = "norm"

    def feed_forward(self, block: Any) -> FeedForward:
        mlp, factor = block.mlp, self.factors(block)[1]
        gate = mlp.gate_proj if self.config.use_gated_mlp else None
        return feed_forward_of(mlp.up_proj, mlp.down_proj, self.activation, gate, factor)
