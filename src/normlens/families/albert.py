"""ALBERT: post-LN layers that share their weights, run several times over."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, Head
from normlens.models import base
from normlens.models.tiny import ENCODER


@base.register("albert", tiny=dict(ENCODER, embedding_size=8, num_hidden_layers=3))
class Albert(base.Adapter):
    norms = "attention.LayerNorm", "full_layer_layer_norm"

    def blocks(self) -> list[Any]:
        # Layer i runs group ⌊i / (layers / groups)⌋, each group its inner layers in turn.
        config, encoder = self.config, self.model.encoder
        per_group = config.num_hidden_layers / config.num_hidden_groups
        return [
            block
            for index in range(config.num_hidden_layers)
            for block in encoder.albert_layer_groups[int(index / per_group)].albert_layers
        ]

    def masked_head(self, model: Any) -> Head | None:
        head = model.predictions
        return self.words_head(head.dense, self.config.hidden_act, head.LayerNorm, head.decoder)

    def sequence_head(self, model: Any) -> Head | None:
        return self.pooled_head(self.model.pooler, "tanh", model.classifier)

    def attention(self, block: Any) -> Attention:
        attention = block.attention
        heads = attention.num_attention_heads
        return base.attention_of(attention, attention.value, attention.dense, heads)

    def feed_forward(self, block: Any) -> FeedForward:
        return base.feed_forward_of(block.ffn, block.ffn_output, self.activation)
