"""CLIP's and SigLIP's towers: one block for pictures and texts, norms first."""

from __future__ import annotations

from typing import Any

from normlens.layers import MEAN, PATCHES, Head, HeadStep, Step
from normlens.models import base
from normlens.models.parts import ImageEncoder
from normlens.models.tiny import ENCODER, IMAGE


class Tower(base.Adapter):
    """Either of two towers."""

    def blocks(self) -> list[Any]:
        return list(self.model.encoder.layers)

    def steps(self, block: Any) -> list[Step]:
        mixing, mlp = base.projected_attention(block.self_attn), block.mlp
        feed_forward = base.feed_forward_of(mlp.fc1, mlp.fc2, self.config.hidden_act)
        norms = base.layer_norm(block.layer_norm1), base.layer_norm(block.layer_norm2)
        return base.sublayers(zip(norms, (mixing, feed_forward), strict=True), norm_first=True)


@base.register("clip_vision_model", tiny=IMAGE)
class ClipVision(Tower, ImageEncoder):
    interpolates = True

    # Its last norm acts on the pooled vector alone, so that the last layer is the model's end.

    def image_head(self, model: Any) -> Head | None:
        return self.image_classifier(PATCHES, model.classifier)


@base.register("clip_text_model", tiny=ENCODER)
class ClipText(Tower):
    @property
    def causal(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.config, "is_causal", True))

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.final_layer_norm)]


@base.register("siglip_vision_model", tiny=IMAGE)
class SiglipVision(Tower, ImageEncoder):
    interpolates = True

    def prefix(self) -> list[str]:
        return []

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.post_layernorm)]

    def image_head(self, model: Any) -> Head | None:
        return self.image_classifier(MEAN, model.classifier)

    def outside_scopes(self) -> str | None:
        if not getattr(self.model, "use_head", False):
            return None
        return "an attention behind the last layer pools the patches into the picture's one vector"


@base.register("siglip_text_model", "siglip2_text_model", tiny=ENCODER)
class SiglipText(Tower):
    reads_padding = True  # trained so, and pooled at the last token, whichever that is

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.final_layer_norm)]
