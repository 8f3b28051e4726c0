"""BERT and the encoders that share its block: post-LN, biases everywhere."""

from dataclasses import replace
from typing import Any

from normlens.errors import UnsupportedModelError
from normlens.layers import CAUSAL, Head
from normlens.models import base
from normlens.models.tiny import ENCODER


@base.register("bert", tiny=ENCODER)
@base.register("ernie", tiny=dict(ENCODER, use_task_id=True))
@base.register("layoutlm", tiny=dict(ENCODER, max_2d_position_embeddings=8))
class Bert(base.Adapter):
    layers_path = "encoder.layer"
    attention_paths = "attention.self", "attention.self.value", "attention.output.dense"
    feed_forward_paths = "intermediate.dense", "output.dense"
    norms = "attention.output.LayerNorm", "output.LayerNorm"
    masked_paths = (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
    )
    pooled_paths = "base_model.pooler.dense", "classifier"

    @property
    def causal(self) -> bool:  # type: ignore[override]
        # As a decoder it takes the mask that transformers gives every decoder.
        return bool(getattr(self.config, "is_decoder", False)) and bool(
            getattr(self.config, "is_causal", True)
        )

    def causal_head(self, model: Any) -> Head | None:
        masked = self.masked_head(model)
        return None if masked is None else replace(masked, task=CAUSAL)


@base.register("electra", tiny=dict(ENCODER, embedding_size=8))
class Electra(Bert):
    masked_paths = (
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head",
    )
    pooled_paths = "classifier.dense", "classifier.out_proj"
    masked_activation = pooled_activation = "gelu"


@base.register("dpr", tiny=ENCODER)
class Dpr(Bert):
    def __init__(self, model: Any):
        super().__init__(getattr(model, "bert_model", model))  # the encoder returns only a tuple


@base.register("rembert", tiny=dict(ENCODER, input_embedding_size=8, output_embedding_size=12))
class RemBert(Bert):
    masked_paths = "cls.predictions.dense", "cls.predictions.LayerNorm", "cls.predictions.decoder"


@base.register("roformer", tiny=dict(ENCODER, embedding_size=8))
class RoFormer(Bert):
    pooled_paths = "classifier.dense", "classifier.out_proj"
    pooled_activation = None

    def __init__(self, model: Any):
        super().__init__(model)
        if self.config.rotary_value:
            raise UnsupportedModelError(
                "RoFormer with rotary_value=True rotates value vectors by their positions, so that "
                "values are no linear map of a layer's vectors; load one with rotary_value=False"
            )


@base.register("roberta", "xlm-roberta", "camembert", "data2vec-text", tiny=ENCODER)
class Roberta(Bert):
    masked_paths = "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"
    masked_activation = "gelu"
    pooled_paths = "classifier.dense", "classifier.out_proj"

    def max_positions(self) -> int:
        # The first padding_idx + 1 rows of the position table are not positions.
        return self.config.max_position_embeddings - self.config.pad_token_id - 1
