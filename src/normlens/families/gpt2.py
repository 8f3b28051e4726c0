"""GPT-2: pre-LN, fused query–key–value projection."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward
from normlens.models import base
from normlens.models.tiny import GPT


@base.register("gpt2", tiny=GPT)
class GPT2(base.Decoder):
    layers_path = "h"
    norms = "ln_1", "ln_2"
    norm_first = True
    final_norm: str | None = "ln_f"

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
