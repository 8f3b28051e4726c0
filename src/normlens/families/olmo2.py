"""OLMo 2, OLMo 3 and EXAONE 4: no norm before a branch, one behind it."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Llama
from normlens.layers import Branch, Residual, Step
from normlens.models.base import register
from normlens.models.tiny import EXPERTS, GROUPED


@register("flex_olmo", tiny=EXPERTS)  # with experts in place of the block
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


@register(
    "olmo3",
    tiny=dict(
        GROUPED,
        attention_bias=True,
        sliding_window=3,
        layer_types=["sliding_attention", "full_attention"],
    ),
)
class Olmo3(Olmo2):
    def window(self, block: Any) -> int | None:
        return self.sliding_window(block.self_attn)


@register(
    "exaone4",
    tiny=dict(GROUPED, sliding_window=3, layer_types=["sliding_attention", "full_attention"]),
)
class Exaone4(Olmo2):
    def window(self, block: Any) -> int | None:
        return self.config.sliding_window if block.self_attn.is_sliding else None
