"""Nemotron: Arcee's block with LayerNorms that multiply by 1 + γ."""

from __future__ import annotations

from typing import Any

from normlens.families.arcee import Arcee
from normlens.layers import Norm
from normlens.models.base import layer_norm, register
from normlens.models.tiny import GROUPED


@register("nemotron", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True))
class Nemotron(Arcee):
    def norm(self, module: Any) -> Norm:
        return layer_norm(module, offset=1.0)
