"""GPT-2: pre-LN, fused query–key–value projection."""

from __future__ import annotations

from typing import Any

from normlens.components import Attention, Branch, FeedForward, Residual, Step
from normlens.heads import HeadStep
from normlens.models.base import Decoder, columns, layer_norm, linear, register
from normlens.models.tiny import GPT


@register("gpt2", tiny=GPT)
class GPT2(Decoder):
    def blocks(self) -> list[Any]:
        return list(self.model.h)

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.ln_f)]

    def attention(self, block: Any) -> Attention:
        attention, d = block.attn, self.config.hidden_size
        return Attention(
            value=columns(attention.c_attn, 2 * d, 3 * d),
            output=linear(attention.c_proj),
            heads=attention.num_heads,
            groups=attention.num_heads,
            weights=attention,
            module=attention.c_proj,
        )

    def steps(self, block: Any) -> list[Step]:
        return [
            Branch(),
            layer_norm(block.ln_1),
            self.attention(block),
            Residual(),
            Branch(),
            layer_norm(block.ln_2),
            FeedForward(
                up=linear(block.mlp.c_fc),
                down=linear(block.mlp.c_proj),
                activation=self.config.activation_function,
                module=block.mlp.c_proj,
            ),
            Residual(),
        ]
