"""MPNet: BERT's block with a relative position bias in the attention weights."""

from __future__ import annotations

from typing import Any

from normlens.components import Attention, Branch, FeedForward, Residual, Step
from normlens.heads import ANY, FIRST, MASKED, SEQUENCES, Elementwise, Head
from normlens.models.base import Adapter, layer_norm, linear, register
from normlens.models.heads import dense, transform
from normlens.models.tiny import ENCODER


@register("mpnet", tiny=ENCODER)
class MPNet(Adapter):
    def blocks(self) -> list[Any]:
        return list(self.model.encoder.layer)

    def masked_head(self, model: Any) -> Head | None:
        head = model.lm_head
        steps = transform(head.dense, "gelu", layer_norm(head.layer_norm))
        return Head(MASKED, ANY, steps=steps, output=linear(head.decoder))

    def sequence_head(self, model: Any) -> Head | None:
        head = model.classifier
        first = dense(head.dense)
        return self.classifier(SEQUENCES, FIRST, head.out_proj, first, Elementwise("tanh"))

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
