"""CLIP's and SigLIP's towers: one block for pictures and texts, norms first."""

from typing import Any

from normlens.layers import MEAN, PATCHES, Head
from normlens.models import base
from normlens.models.parts import ImageEncoder
from normlens.models.tiny import ENCODER, IMAGE


class Tower(base.Adapter):
    """Either of two towers."""

    layers_path = "encoder.layers"
    attention_paths = "self_attn", "self_attn.v_proj", "self_attn.out_proj"
    feed_forward_paths = "mlp.fc1", "mlp.fc2"
    norms = "layer_norm1", "layer_norm2"
    norm_first = True


@base.register("clip_vision_model", tiny=IMAGE)
class ClipVision(Tower, ImageEncoder):
    interpolates = True

    # Its last norm acts on the pooled vector alone, so that the last layer is the model's end.

    def image_head(self, model: Any) -> Head | None:
        return self.image_classifier(PATCHES, model.classifier)


@base.register("clip_text_model", tiny=ENCODER)
class ClipText(Tower):
    final_norm = "final_layer_norm"

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.config, "is_causal", True))


@base.register("siglip_vision_model", tiny=IMAGE)
class SiglipVision(Tower, ImageEncoder):
    interpolates = True
    final_norm = "post_layernorm"

    def prefix(self) -> list[str]:
        return []

    def image_head(self, model: Any) -> Head | None:
        return self.image_classifier(MEAN, model.classifier)

    def outside_scopes(self) -> str | None:
        if not getattr(self.model, "use_head", False):
            return None
        return "an attention behind the last layer pools the patches into the picture's one vector"


@base.register("siglip_text_model", "siglip2_text_model", tiny=ENCODER)
class SiglipText(Tower):
    final_norm = "final_layer_norm"
    reads_padding = True  # trained so, and pooled at the last token, whichever that is
