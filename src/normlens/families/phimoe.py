"""Phi-3.5-MoE: Mixtral's block with LayerNorms and a router of its own."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Mistral
from normlens.layers import Norm
from normlens.models.base import layer_norm, register
from normlens.models.tiny import EXPERTS


@register("phimoe", tiny=dict(EXPERTS, attention_bias=True, lm_head_bias=True, sliding_window=3))
class Phimoe(Mistral):
    def norm(self, module: Any) -> Norm:
        return layer_norm(module)
