"""DistilBERT: post-LN, half of BERT's layers."""

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


@register(
    "distilbert",
    tiny=dict(
        vocab_size=64, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=48
    ),
)
class DistilBert(Adapter):
    def blocks(self) -> list[Any]:
        return list(self.model.transformer.layer)

    def masked_head(self, model: Any) -> Head | None:
        norm = layer_norm(model.vocab_layer_norm)
        steps = transform(model.vocab_transform, self.config.activation, norm)
        return Head(MASKED, ANY, steps=steps, output=linear(model.vocab_projector))

    def sequence_head(self, model: Any) -> Head | None:
        first = dense(model.pre_classifier)
        return self.classifier(SEQUENCES, FIRST, model.classifier, first, Elementwise("relu"))

    def steps(self, block: Any) -> list[Step]:
        attention, ffn = block.attention, block.ffn
        attend = Attention(
            value=linear(attention.v_lin),
            output=linear(attention.out_lin),
            heads=attention.n_heads,
            groups=attention.n_heads,
            weights=attention,
            module=attention.out_lin,
        )
        feed_forward = FeedForward(
            up=linear(ffn.lin1),
            down=linear(ffn.lin2),
            activation=self.config.activation,
            module=ffn.lin2,
        )
        return sublayers(
            [
                (layer_norm(block.sa_layer_norm), attend),
                (layer_norm(block.output_layer_norm), feed_forward),
            ],
            norm_first=False,
        )
