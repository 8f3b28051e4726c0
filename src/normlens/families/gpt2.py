"""GPT-2: pre-LN, fused query–key–value projection."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, HeadStep, Step
from normlens.models.base import Decoder, columns, layer_norm, linear, register, sublayers
from normlens.models.tiny import GPT


@register("gpt2", tiny=GPT)
class GPT2(Decoder):
    norm_first = True

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

    @property
    def activation(self) -> str:
        return self.config.activation_function

    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return FeedForward(
            up=linear(mlp.c_fc),
            down=linear(mlp.c_proj),
            activation=self.activation,
            module=mlp.c_proj,
        )

    def steps(self, block: Any) -> list[Step]:
        return sublayers(
            [
                (layer_norm(block.ln_1), self.attention(block)),
                (layer_norm(block.ln_2), self.feed_forward(block)),
            ],
            norm_first=self.norm_first,
        )
