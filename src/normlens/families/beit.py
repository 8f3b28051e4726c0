"""BEiT: ViT's block with LayerScale and relative positions, which only α knows."""

from typing import Any

from torch import Tensor

from normlens.families.vit import ViT
from normlens.layers import PATCHES, Head
from normlens.models.base import layer_norm, register
from normlens.models.tiny import IMAGE


@register("beit", tiny=dict(IMAGE, use_relative_position_bias=True))
class Beit(ViT):
    interpolates = False  # whatever the size, without being asked

    def factors(self, block: Any) -> tuple[float | Tensor, float | Tensor]:
        return block.lambda_1, block.lambda_2

    def image_head(self, model: Any) -> Head | None:
        norm = self.model.pooler.layernorm  # with mean pooling it stands behind the mean
        if norm is None:
            return super().image_head(model)
        return self.image_classifier(PATCHES, model.classifier, layer_norm(norm))
