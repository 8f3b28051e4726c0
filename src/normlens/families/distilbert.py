"""DistilBERT: post-LN, half of BERT's layers."""

from __future__ import annotations

from typing import Any

from normlens.layers import Head, Step
from normlens.models import base


@base.register(
    "distilbert",
    tiny=dict(
        vocab_size=64, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=48
    ),
)
class DistilBert(base.Adapter):
    def blocks(self) -> list[Any]:
        return list(self.model.transformer.layer)

    def masked_head(self, model: Any) -> Head | None:
        norm, words = model.vocab_layer_norm, model.vocab_projector
        return self.words_head(model.vocab_transform, self.config.activation, norm, words)

    def sequence_head(self, model: Any) -> Head | None:
        return self.pooled_head(model.pre_classifier, "relu", model.classifier)

    def steps(self, block: Any) -> list[Step]:
        attention, ffn = block.attention, block.ffn
        attend = base.attention_of(attention, attention.v_lin, attention.out_lin, attention.n_heads)
        feed_forward = base.feed_forward_of(ffn.lin1, ffn.lin2, self.config.activation)
        return base.sublayers(
            [
                (base.layer_norm(block.sa_layer_norm), attend),
                (base.layer_norm(block.output_layer_norm), feed_forward),
            ],
            norm_first=False,
        )
