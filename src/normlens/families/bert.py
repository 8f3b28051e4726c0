"""BERT and the encoders that share its block: post-LN, biases everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from normlens.errors import UnsupportedModelError
from normlens.layers import CAUSAL, Attention, FeedForward, Head, Linear
from normlens.models import base
from normlens.models.tiny import ENCODER


@base.register("bert", tiny=ENCODER)
@base.register("ernie", tiny=dict(ENCODER, use_task_id=True))
@base.register("layoutlm", tiny=dict(ENCODER, max_2d_position_embeddings=8))
class Bert(base.Adapter):
    layers_path = "encoder.layer"
    norms = "attention.output.LayerNorm", "output.LayerNorm"

    @property
    def causal(self) -> bool:  # type: ignore[override]
        # As a decoder it takes the mask that transformers gives every decoder.
        return bool(getattr(self.config, "is_decoder", False)) and bool(
            getattr(self.config, "is_causal", True)
        )

    def masked_head(self, model: Any) -> Head | None:
        head, inner = model.cls.predictions, model.cls.predictions.transform
        return self.words_head(inner.dense, self.config.hidden_act, inner.LayerNorm, head.decoder)

    def causal_head(self, model: Any) -> Head | None:
        masked = self.masked_head(model)
        return None if masked is None else replace(masked, task=CAUSAL)

    def sequence_head(self, model: Any) -> Head | None:
        return self.pooled_head(self.model.pooler.dense, "tanh", model.classifier)

    def attention(self, block: Any) -> Attention:
        attention = block.attention
        heads = attention.self.num_attention_heads
        return base.attention_of(
            attention.self, attention.self.value, attention.output.dense, heads
        )

    def feed_forward(self, block: Any) -> FeedForward:
        return base.feed_forward_of(block.intermediate.dense, block.output.dense, self.activation)


@base.register("electra", tiny=dict(ENCODER, embedding_size=8))
class Electra(Bert):
    def masked_head(self, model: Any) -> Head | None:
        head = model.generator_predictions
        return self.words_head(head.dense, "gelu", head.LayerNorm, model.generator_lm_head)

    def sequence_head(self, model: Any) -> Head | None:
        head = model.classifier
        return self.pooled_head(head.dense, "gelu", head.out_proj)


@base.register("dpr", tiny=ENCODER)
class Dpr(Bert):
    def __init__(self, model: Any):
        super().__init__(getattr(model, "bert_model", model))  # the encoder returns only a tuple


@base.register("rembert", tiny=dict(ENCODER, input_embedding_size=8, output_embedding_size=12))
class RemBert(Bert):
    def masked_head(self, model: Any) -> Head | None:
        head = model.cls.predictions
        return self.words_head(head.dense, self.config.hidden_act, head.LayerNorm, head.decoder)


@base.register("roformer", tiny=dict(ENCODER, embedding_size=8))
class RoFormer(Bert):
    def __init__(self, model: Any):
        super().__init__(model)
        if self.config.rotary_value:
            raise UnsupportedModelError(
                "RoFormer with rotary_value=True rotates value vectors by their positions, so that "
                "values are no linear map of a layer's vectors; load one with rotary_value=False"
            )

    def sequence_head(self, model: Any) -> Head | None:
        head = model.classifier
        return self.pooled_head(head.dense, self.config.hidden_act, head.out_proj)


@base.register("roberta", "xlm-roberta", "camembert", "data2vec-text", tiny=ENCODER)
class Roberta(Bert):
    def masked_head(self, model: Any) -> Head | None:
        head = model.lm_head
        return self.words_head(head.dense, "gelu", head.layer_norm, self.masked_output(head))

    def masked_output(self, head: Any) -> Linear:
        return base.linear(head.decoder)

    def sequence_head(self, model: Any) -> Head | None:
        head = model.classifier
        return self.pooled_head(head.dense, "tanh", head.out_proj)

    def max_positions(self) -> int:
        # The first padding_idx + 1 rows of the position table are not positions.
        return self.config.max_position_embeddings - self.config.pad_token_id - 1
