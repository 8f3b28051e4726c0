"""OLMo 2: no norm before a branch, one behind it."""

from __future__ import annotations

from typing import Any

from normlens.components import Branch, Residual, Step
from normlens.models.base import register
from normlens.models.families.llama import Llama
from normlens.models.tiny import GROUPED


@register("olmo2", tiny=GROUPED)
class Olmo2(Llama):
    def steps(self, block: Any) -> list[Step]:
        return [
            Branch(),
            self.attention(block),
            self.norm(block.post_attention_layernorm),
            Residual(),
            Branch(),
            self.feed_forward(block),
            self.norm(block.post_feedforward_layernorm),
            Residual(),
        ]
