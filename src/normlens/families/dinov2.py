"""DINOv2: ViT's block with LayerScale, perhaps gated; with registers, too."""

from typing import Any

from torch import Tensor

from normlens.families.vit import ViT
from normlens.layers import FIRST_AND_PATCHES, Attention, Experts, FeedForward, Head
from normlens.models.base import attention_of, feed_forward_of, fused_gate, register
from normlens.models.tiny import IMAGE

_TINY = {name: size for name, size in IMAGE.items() if name != "intermediate_size"}


@register("dinov2", tiny=dict(_TINY, mlp_ratio=2, use_swiglu_ffn=True))
class Dinov2(ViT):
    layers_path = "encoder.layer"
    norms = "norm1", "norm2"
    interpolates = False  # whatever the size, without being asked

    def factors(self, block: Any) -> tuple[Tensor, Tensor]:
        return block.layer_scale1.lambda1, block.layer_scale2.lambda1

    def attention(self, block: Any) -> Attention:
        if hasattr(block.attention, "v_proj"):
            return super().attention(block)
        # transformers before 5.18 has BERT's modules here.
        inner, output = block.attention.attention, block.attention.output.dense
        heads, factor = self.config.num_attention_heads, self.factors(block)[0]
        return attention_of(inner, inner.value, output, heads, scale=factor)

    def feed_forward(self, block: Any) -> FeedForward | Experts:
        if not self.config.use_swiglu_ffn:
            return super().feed_forward(block)
        mlp, factor = block.mlp, self.factors(block)[1]
        if not hasattr(mlp, "weights_in"):
            return feed_forward_of(mlp.up_proj, mlp.down_proj, "silu", mlp.gate_proj, factor)
        # transformers before 5.18 has gate and up in one.
        return fused_gate(mlp.weights_in, mlp.weights_out, "silu", factor)

    def image_head(self, model: Any) -> Head | None:
        return self.image_classifier(FIRST_AND_PATCHES, model.classifier)


@register("dinov2_with_registers", tiny=dict(_TINY, mlp_ratio=2, num_register_tokens=2))
class Dinov2WithRegisters(Dinov2):
    def prefix(self) -> list[str]:
        return ["[CLS]", *(f"[REG{k + 1}]" for k in range(self.config.num_register_tokens))]
