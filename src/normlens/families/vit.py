"""ViT and the image encoders that share its block: DeiT, ViT-MAE, ViT-MSN, I-JEPA."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normlens.errors import UnsupportedModelError
from normlens.layers import FIRST_TWO, MEAN, Attention, FeedForward, Head, HeadStep, Linear, Step
from normlens.models import base
from normlens.models.parts import ImageEncoder
from normlens.models.tiny import IMAGE


@base.register("vit", "vit_msn", tiny=IMAGE)
class ViT(ImageEncoder):
    interpolates = True

    def blocks(self) -> list[Any]:
        return list(self.model.layers)

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.layernorm)]

    def factors(self, block: Any) -> tuple[float | Tensor, float | Tensor]:
        """What the outputs of the attention and of the feed-forward block are multiplied by."""
        return 1.0, 1.0

    def attention(self, block: Any, factor: float | Tensor) -> Attention:
        attention = block.attention
        heads = self.config.num_attention_heads
        return base.attention_of(attention, attention.v_proj, attention.o_proj, heads, scale=factor)

    def feed_forward(self, block: Any, factor: float | Tensor) -> FeedForward:
        mlp = block.mlp
        return base.feed_forward_of(mlp.fc1, mlp.fc2, self.config.hidden_act, scale=factor)

    def norms(self, block: Any) -> tuple[Any, Any]:
        return block.layernorm_before, block.layernorm_after

    def steps(self, block: Any) -> list[Step]:
        of_attention, of_feed_forward = self.factors(block)
        parts = self.attention(block, of_attention), self.feed_forward(block, of_feed_forward)
        norms = map(base.layer_norm, self.norms(block))
        return base.sublayers(zip(norms, parts, strict=True), norm_first=True)


@base.register("deit", tiny=IMAGE)
class DeiT(ViT):
    def prefix(self) -> list[str]:
        return ["[CLS]", "[DIST]"]

    def teacher_head(self, model: Any) -> Head | None:
        """The mean of two classifiers, one of [CLS] and one of [DIST]."""
        both = base.linear(model.cls_classifier), base.linear(model.distillation_classifier)
        weight = torch.cat([each.weight for each in both])
        bias = sum(each.bias for each in both if each.bias is not None)
        output = Linear(weight, bias if isinstance(bias, Tensor) else None, scale=0.5)
        return replace(self.image_classifier(FIRST_TWO, model.cls_classifier), output=output)


@base.register("vit_mae", tiny=dict(IMAGE, mask_ratio=0.0))
class ViTMAE(ViT):
    def call_options(self, values: Tensor) -> dict[str, Any]:
        if self.config.mask_ratio:
            raise UnsupportedModelError(
                f"this model leaves out {self.config.mask_ratio:.0%} of the patches, at random; "
                "load it with mask_ratio=0 (ViTMAEModel.from_pretrained(…, mask_ratio=0.0)) and "
                "pass the model to load"
            )
        # Patches are sorted by noise, which would shuffle them even where none is left out.
        n = len(values), *self.grid(*values.shape[-2:])
        noise = torch.arange(n[1] * n[2], device=values.device).expand(n[0], -1)
        return {"noise": noise, **super().call_options(values)}


@base.register("ijepa", tiny=IMAGE)
class IJepa(ViT):
    def prefix(self) -> list[str]:
        return []

    def image_head(self, model: Any) -> Head | None:
        return self.image_classifier(MEAN, model.classifier)
