"""DINOv3's ViT: DINOv2's block with rotary positions, which only α knows, and registers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from normlens.families.dinov2 import Dinov2WithRegisters
from normlens.layers import FeedForward, HeadStep
from normlens.models.base import feed_forward_of, layer_norm, linear, register
from normlens.models.tiny import IMAGE


@register("dinov3_vit", tiny=dict(IMAGE, use_gated_mlp=True, num_register_tokens=2))
class DINOv3ViT(Dinov2WithRegisters):
    def blocks(self) -> list[Any]:
        return list(self.model.model.layer)

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.norm)]

    def feed_forward(self, block: Any, factor: float | Tensor) -> FeedForward:
        mlp = block.mlp
        return feed_forward_of(
            mlp.up_proj,
            mlp.down_proj,
            self.config.hidden_act,
            gate=linear(mlp.gate_proj) if self.config.use_gated_mlp else None,
            scale=factor,
        )
