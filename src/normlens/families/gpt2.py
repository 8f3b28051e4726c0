"""GPT-2: pre-LN, fused query–key–value projection."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, HeadStep, Step
from normlens.models import base
from normlens.models.tiny import GPT


@base.register("gpt2", tiny=GPT)
class GPT2(base.Decoder):
    norm_first = True

    def blocks(self) -> list[Any]:
        return list(self.model.h)

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.ln_f)]

    def attention(self, block: Any) -> Attention:
        attention, d = block.attn, self.config.hidden_size
        return base.attention_of(
            attention,
            base.columns(attention.c_attn, 2 * d, 3 * d),
            attention.c_proj,
            attention.num_heads,
        )

    @property
    def activation(self) -> str:
        return self.config.activation_function

    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return base.feed_forward_of(mlp.c_fc, mlp.c_proj, self.activation)

    def steps(self, block: Any) -> list[Step]:
        return base.sublayers(
            [
                (base.layer_norm(block.ln_1), self.attention(block)),
                (base.layer_norm(block.ln_2), self.feed_forward(block)),
            ],
            norm_first=self.norm_first,
        )
