"""Cohere (Command R): attention and SwiGLU side by side behind one LayerNorm without bias."""

from typing import Any

from normlens.families.llama import MIXED, Llama
from normlens.models.base import register
from normlens.models.tiny import GROUPED


@register("cohere2", tiny=dict(GROUPED, attention_bias=True, sliding_window=3, layer_types=MIXED))
@register("cohere", tiny=dict(GROUPED, attention_bias=True, use_qk_norm=True, logit_scale=0.25))
class Cohere(Llama):
    norms = ("input_layernorm",)
    side_by_side = True
    rms = False

    def score_scale(self, model: Any) -> float:
        return model.logit_scale
