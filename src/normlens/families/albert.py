"""ALBERT: post-LN layers that share their weights, run several times over."""

from typing import Any

from normlens.models import base
from normlens.models.tiny import ENCODER


@base.register("albert", tiny=dict(ENCODER, embedding_size=8, num_hidden_layers=3))
class Albert(base.Adapter):
    attention_paths = "attention", "attention.value", "attention.dense"
    feed_forward_paths = "ffn", "ffn_output"
    norms = "attention.LayerNorm", "full_layer_layer_norm"
    masked_paths = "predictions.dense", "predictions.LayerNorm", "predictions.decoder"
    pooled_paths = "base_model.pooler", "classifier"

    def blocks(self) -> list[Any]:
        # Layer i runs group ⌊i / (layers / groups)⌋, each group its inner layers in turn.
        config, encoder = self.config, self.model.encoder
        per_group = config.num_hidden_layers / config.num_hidden_groups
        return [
            block
            for index in range(config.num_hidden_layers)
            for block in encoder.albert_layer_groups[int(index / per_group)].albert_layers
        ]
