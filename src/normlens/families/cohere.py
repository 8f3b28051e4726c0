"""Cohere (Command R): attention and SwiGLU side by side behind one LayerNorm without bias."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import MIXED, Llama
from normlens.layers import Norm, Step
from normlens.models.base import layer_norm, register, side_by_side
from normlens.models.tiny import GROUPED


@register("cohere", tiny=dict(GROUPED, attention_bias=True, use_qk_norm=True, logit_scale=0.25))
class Cohere(Llama):
    def norm(self, module: Any) -> Norm:
        return layer_norm(module)

    def steps(self, block: Any) -> list[Step]:
        norm = self.norm(block.input_layernorm)
        return side_by_side(norm, self.attention(block), self.gated(block.mlp))

    def score_scale(self, model: Any) -> float:
        return model.logit_scale


@register("cohere2", tiny=dict(GROUPED, attention_bias=True, sliding_window=3, layer_types=MIXED))
class Cohere2(Cohere):
    def window(self, block: Any) -> int | None:
        return self.sliding_window(block.self_attn)
