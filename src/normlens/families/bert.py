"""BERT and the encoders that share its block: post-LN, biases everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from normlens.errors import UnsupportedModelError
from normlens.layers import (
    ANY,
    CAUSAL,
    FIRST,
    MASKED,
    SEQUENCES,
    Attention,
    Elementwise,
    FeedForward,
    Head,
    Linear,
    Norm,
    Step,
)
from normlens.models.base import Adapter, dense, layer_norm, linear, register, sublayers, transform
from normlens.models.tiny import ENCODER


@register("bert", tiny=ENCODER)
@register("ernie", tiny=dict(ENCODER, use_task_id=True))
@register("layoutlm", tiny=dict(ENCODER, max_2d_position_embeddings=8))
class Bert(Adapter):
    norm_first = False

    @property
    def causal(self) -> bool:  # type: ignore[override]
        # As a decoder it takes the mask that transformers gives every decoder.
        return bool(getattr(self.config, "is_decoder", False)) and bool(
            getattr(self.config, "is_causal", True)
        )

    def blocks(self) -> list[Any]:
        return list(self.model.encoder.layer)

    def masked_head(self, model: Any) -> Head | None:
        head = model.cls.predictions
        norm = layer_norm(head.transform.LayerNorm)
        steps = transform(head.transform.dense, self.config.hidden_act, norm)
        return Head(MASKED, ANY, steps=steps, output=linear(head.decoder))

    def causal_head(self, model: Any) -> Head | None:
        masked = self.masked_head(model)
        return None if masked is None else replace(masked, task=CAUSAL)

    def sequence_head(self, model: Any) -> Head | None:
        pooler = dense(self.model.pooler.dense)
        return self.classifier(SEQUENCES, FIRST, model.classifier, pooler, Elementwise("tanh"))

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

    @property
    def activation(self) -> str:
        return self.config.hidden_act

    def feed_forward(self, block: Any) -> FeedForward:
        return FeedForward(
            up=linear(block.intermediate.dense),
            down=linear(block.output.dense),
            activation=self.activation,
            module=block.output.dense,
        )

    def norms(self, block: Any) -> tuple[Norm, Norm]:
        """The norm of the attention, and the one of the feed-forward block."""
        return layer_norm(block.attention.output.LayerNorm), layer_norm(block.output.LayerNorm)

    def steps(self, block: Any) -> list[Step]:
        first, second = self.norms(block)
        return sublayers(
            [
                (first, self.attention(block)),
                (second, self.feed_forward(block)),
            ],
            norm_first=self.norm_first,
        )


@register("electra", tiny=dict(ENCODER, embedding_size=8))
class Electra(Bert):
    def masked_head(self, model: Any) -> Head | None:
        head = model.generator_predictions
        steps = transform(head.dense, "gelu", layer_norm(head.LayerNorm))
        return Head(MASKED, ANY, steps=steps, output=linear(model.generator_lm_head))

    def sequence_head(self, model: Any) -> Head | None:
        head = model.classifier
        first = dense(head.dense)
        return self.classifier(SEQUENCES, FIRST, head.out_proj, first, Elementwise("gelu"))


@register("dpr", tiny=ENCODER)
class Dpr(Bert):
    def __init__(self, model: Any):
        super().__init__(getattr(model, "bert_model", model))  # the encoder returns only a tuple


@register("rembert", tiny=dict(ENCODER, input_embedding_size=8, output_embedding_size=12))
class RemBert(Bert):
    def masked_head(self, model: Any) -> Head | None:
        head = model.cls.predictions
        steps = transform(head.dense, self.config.hidden_act, layer_norm(head.LayerNorm))
        return Head(MASKED, ANY, steps=steps, output=linear(head.decoder))


@register("roformer", tiny=dict(ENCODER, embedding_size=8))
class RoFormer(Bert):
    def __init__(self, model: Any):
        super().__init__(model)
        if self.config.rotary_value:
            raise UnsupportedModelError(
                "RoFormer with rotary_value=True rotates value vectors by their positions, so that "
                "values are no linear map of a layer's vectors; load one with rotary_value=False"
            )

    def sequence_head(self, model: Any) -> Head | None:
        head, activation = model.classifier, Elementwise(self.config.hidden_act)
        return self.classifier(SEQUENCES, FIRST, head.out_proj, dense(head.dense), activation)


@register("roberta", "xlm-roberta", "camembert", "data2vec-text", tiny=ENCODER)
class Roberta(Bert):
    def masked_head(self, model: Any) -> Head | None:
        head = model.lm_head
        steps = transform(head.dense, "gelu", layer_norm(head.layer_norm))
        return Head(MASKED, ANY, steps=steps, output=self.masked_output(head))

    def masked_output(self, head: Any) -> Linear:
        return linear(head.decoder)

    def sequence_head(self, model: Any) -> Head | None:
        head = model.classifier
        first = dense(head.dense)
        return self.classifier(SEQUENCES, FIRST, head.out_proj, first, Elementwise("tanh"))

    def max_positions(self) -> int:
        # The first padding_idx + 1 rows of the position table are not positions.
        return self.config.max_position_embeddings - self.config.pad_token_id - 1
