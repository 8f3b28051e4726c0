"""ALBERT: post-LN layers that share their weights, run several times over."""

from __future__ import annotations

from typing import Any

from normlens.layers import (
    ANY,
    FIRST,
    MASKED,
    SEQUENCES,
    Attention,
    Elementwise,
    FeedForward,
    Head,
    Step,
)
from normlens.models.base import Adapter, dense, layer_norm, linear, register, sublayers, transform
from normlens.models.tiny import ENCODER


@register("albert", tiny=dict(ENCODER, embedding_size=8, num_hidden_layers=3))
class Albert(Adapter):
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
        steps = transform(head.dense, self.config.hidden_act, layer_norm(head.LayerNorm))
        return Head(MASKED, ANY, steps=steps, output=linear(head.decoder))

    def sequence_head(self, model: Any) -> Head | None:
        pooler = dense(self.model.pooler)
        return self.classifier(SEQUENCES, FIRST, model.classifier, pooler, Elementwise("tanh"))

    def steps(self, block: Any) -> list[Step]:
        attention = block.attention
        heads = attention.num_attention_heads
        attend = Attention(
            value=linear(attention.value),
            output=linear(attention.dense),
            heads=heads,
            groups=heads,
            weights=attention,
            module=attention.dense,
        )
        feed_forward = FeedForward(
            up=linear(block.ffn),
            down=linear(block.ffn_output),
            activation=self.config.hidden_act,
            module=block.ffn_output,
        )
        return sublayers(
            [
                (layer_norm(attention.LayerNorm), attend),
                (layer_norm(block.full_layer_layer_norm), feed_forward),
            ],
            norm_first=False,
        )
