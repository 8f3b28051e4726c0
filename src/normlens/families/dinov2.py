"""DINOv2: ViT's block with LayerScale, perhaps gated; with registers, too."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from normlens.families.vit import ViT
from normlens.layers import FIRST_AND_PATCHES, Attention, FeedForward, Head
from normlens.models.base import columns, linear, register, scaled
from normlens.models.tiny import IMAGE

_TINY = {name: size for name, size in IMAGE.items() if name != "intermediate_size"}


@register("dinov2", tiny=dict(_TINY, mlp_ratio=2, use_swiglu_ffn=True))
class Dinov2(ViT):
    interpolates = False  # whatever the size, without being asked

    def blocks(self) -> list[Any]:
        return list(self.model.encoder.layer)

    def norms(self, block: Any) -> tuple[Any, Any]:
        return block.norm1, block.norm2

    def factors(self, block: Any) -> tuple[Tensor, Tensor]:
        return block.layer_scale1.lambda1, block.layer_scale2.lambda1

    def attention(self, block: Any, factor: float | Tensor) -> Attention:
        if hasattr(block.attention, "v_proj"):
            return super().attention(block, factor)
        # transformers before 5.18 has BERT's modules here.
        inner, output = block.attention.attention, block.attention.output.dense
        heads = self.config.num_attention_heads
        out = scaled(linear(output), factor)
        return Attention(linear(inner.value), out, heads, heads, weights=inner, module=output)

    def feed_forward(self, block: Any, factor: float | Tensor) -> FeedForward:
        if not self.config.use_swiglu_ffn:
            return super().feed_forward(block, factor)
        mlp = block.mlp
        if hasattr(mlp, "weights_in"):  # transformers before 5.18: gate and up in one
            width = mlp.weights_out.in_features
            gate, up = columns(mlp.weights_in, 0, width), columns(mlp.weights_in, width, 2 * width)
            down = mlp.weights_out
        else:
            gate, up, down = linear(mlp.gate_proj), linear(mlp.up_proj), mlp.down_proj
        return FeedForward(up, scaled(linear(down), factor), "silu", gate, down)

    def image_head(self, model: Any) -> Head | None:
        return self.image_classifier(FIRST_AND_PATCHES, model.classifier)


@register("dinov2_with_registers", tiny=dict(_TINY, mlp_ratio=2, num_register_tokens=2))
class Dinov2WithRegisters(Dinov2):
    def prefix(self) -> list[str]:
        return ["[CLS]", *(f"[REG{k + 1}]" for k in range(self.config.num_register_tokens))]
