"""MPNet: BERT's block with a relative position bias in the attention weights."""

from __future__ import annotations

from typing import Any

from normlens.components import Attention, Branch, FeedForward, Residual, Step
from normlens.models.base import Adapter, layer_norm, linear, register
from normlens.models.tiny import ENCODER


@register("mpnet", tiny=ENCODER)
class MPNet(Adapter):
    def blocks(self) -> list[Any]:
        return list(self.model.encoder.layer)

    def steps(self, block: Any) -> list[Step]:
        attention = block.attention.attn
        heads = attention.num_attention_heads
        return [
            Branch(),
            Attention(
                value=linear(attention.v),
                output=linear(attention.o),
                heads=heads,
                groups=heads,
                # The module returns its weights only on request; they all pass the dropout.
                weights=attention.dropout,
                module=attention.o,
            ),
            Residual(),
            layer_norm(block.attention.LayerNorm),
            Branch(),
            FeedForward(
                up=linear(block.intermediate.dense),
                down=linear(block.output.dense),
                activation=self.config.hidden_act,
                module=block.output.dense,
            ),
            Residual(),
            layer_norm(block.output.LayerNorm),
        ]

    def max_positions(self) -> int:
        # As in RoBERTa, positions start behind the padding row.
        return self.config.max_position_embeddings - self.config.pad_token_id - 1
