"""OLMo: Llama's block with LayerNorms that have no weights."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Llama
from normlens.layers import Norm
from normlens.models.base import register
from normlens.models.tiny import GROUPED


@register("olmo", tiny=dict(GROUPED, attention_bias=True, clip_qkv=100.0))
class Olmo(Llama):
    """`clip_qkv` limits values as well: a text in which it does so is not complete, and refused."""

    def norm(self, module: Any) -> Norm:
        return Norm(None, None, 1e-5, True, module)  # its ε is written into its code
