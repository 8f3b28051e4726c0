"""Granite: Llama's block with a factor behind each branch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from normlens.families.llama import Llama
from normlens.layers import Attention, Experts, FeedForward, Head
from normlens.models.base import register, scaled, scaled_scores
from normlens.models.tiny import GROUPED


@register(
    "granite",
    tiny=dict(
        GROUPED,
        attention_bias=True,
        mlp_bias=True,
        residual_multiplier=0.3,
        embedding_multiplier=5.0,
        attention_multiplier=0.4,
        logits_scaling=4.0,
    ),
)
class Granite(Llama):
    # Embeddings are multiplied before the first layer, and scores inside the attention weights.

    def attention(self, block: Any) -> Attention:
        attention = super().attention(block)
        output = scaled(attention.output, block.residual_multiplier)
        return replace(attention, output=output)

    def feed_forward(self, block: Any) -> FeedForward | Experts:
        feed_forward = self.gated(block.mlp)
        down = scaled(feed_forward.down, block.residual_multiplier)
        return replace(feed_forward, down=down)

    def causal_head(self, model: Any) -> Head | None:
        return scaled_scores(super().causal_head(model), 1 / self.config.logits_scaling)
