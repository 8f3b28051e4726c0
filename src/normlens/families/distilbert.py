"""DistilBERT: post-LN, half of BERT's layers."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, Head
from normlens.models import base


@base.register(
    "distilbert",
    tiny=dict(
        vocab_size=64, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=48
    ),
)
class DistilBert(base.Adapter):
    layers_path = "transformer.layer"
    norms = "sa_layer_norm", "output_layer_norm"

    @property
    def activation(self) -> str:
        return self.config.activation

    def masked_head(self, model: Any) -> Head | None:
        norm, words = model.vocab_layer_norm, model.vocab_projector
        return self.words_head(model.vocab_transform, self.activation, norm, words)

    def sequence_head(self, model: Any) -> Head | None:
        return self.pooled_head(model.pre_classifier, "relu", model.classifier)

    def attention(self, block: Any) -> Attention:
        attention = block.attention
        return base.attention_of(attention, attention.v_lin, attention.out_lin, attention.n_heads)

    def feed_forward(self, block: Any) -> FeedForward:
        return base.feed_forward_of(block.ffn.lin1, block.ffn.lin2, self.activation)
