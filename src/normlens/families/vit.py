"""ViT and the image encoders that share its block: DeiT, ViT-MAE, ViT-MSN, I-JEPA."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normlens.errors import UnsupportedModelError
from normlens.layers import FIRST_TWO, MEAN, Head, Linear
from normlens.models import base
from normlens.models.parts import ImageEncoder
from normlens.models.tiny import IMAGE


@base.register("vit", "vit_msn", tiny=IMAGE)
class ViT(ImageEncoder):
    layers_path = "layers"
    attention_paths = "attention", "attention.v_proj", "attention.o_proj"
    feed_forward_paths = "mlp.fc1", "mlp.fc2"
    norms = "layernorm_before", "layernorm_after"
    norm_first = True
    final_norm = "layernorm"
    interpolates = True


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
