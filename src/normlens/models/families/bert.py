"""BERT and the encoders that share its block: post-LN, biases everywhere."""

from __future__ import annotations

from typing import Any

from normlens.components import Attention, Branch, FeedForward, Residual, Step
from normlens.models.base import Adapter, layer_norm, linear, register
from normlens.models.tiny import ENCODER


@register("electra", tiny=dict(ENCODER, embedding_size=8))
@register("bert", tiny=ENCODER)
class Bert(Adapter):
    @property
    def causal(self) -> bool:  # type: ignore[override]
        # As a decoder it takes the mask that transformers gives every decoder.
        return bool(getattr(self.config, "is_decoder", False)) and bool(
            getattr(self.config, "is_causal", True)
        )

    def blocks(self) -> list[Any]:
        return list(self.model.encoder.layer)

    def attention(self, block: Any) -> Attention:
        attention = block.attention
        heads = attention.self.num_attention_heads
        return Attention(
            value=linear(attention.self.value),
            output=linear(attention.output.dense),
            heads=heads,
            groups=heads,
            weights=attention.self,
            module=attention.output.dense,
        )

    def steps(self, block: Any) -> list[Step]:
        return [
            Branch(),
            self.attention(block),
            Residual(),
            layer_norm(block.attention.output.LayerNorm),
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


@register("roberta", "xlm-roberta", "camembert", tiny=ENCODER)
class Roberta(Bert):
    def max_positions(self) -> int:
        # The first padding_idx + 1 rows of the position table are not positions.
        return self.config.max_position_embeddings - self.config.pad_token_id - 1
