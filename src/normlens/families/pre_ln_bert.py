"""BERT's block with its norms first: Megatron-BERT, RoBERTa-PreLayerNorm, XLM-RoBERTa-XL, ESM."""

from typing import Any

from normlens.families.bert import Bert, Roberta
from normlens.layers import Head, Linear
from normlens.models.base import linear, register
from normlens.models.tiny import ENCODER


@register("megatron-bert", tiny=ENCODER)
class MegatronBert(Bert):
    norm_first = True
    final_norm = "encoder.ln"
    norms = "attention.ln", "ln"


@register("roberta-prelayernorm", tiny=ENCODER)
class RobertaPreLayerNorm(Roberta):
    norm_first = True
    final_norm = "LayerNorm"
    norms = "attention.LayerNorm", "intermediate.LayerNorm"


@register("xlm-roberta-xl", tiny=ENCODER)
class XLMRobertaXL(RobertaPreLayerNorm):
    final_norm = "encoder.LayerNorm"
    norms = "attention.self_attn_layer_norm", "LayerNorm"


@register(
    "esm",
    tiny=dict(
        ENCODER,
        mask_token_id=63,
        position_embedding_type="rotary",
        emb_layer_norm_before=True,
        token_dropout=True,
    ),
)
class Esm(RobertaPreLayerNorm):
    activation = "gelu"  # whatever the configuration says
    final_norm = "encoder.emb_layer_norm_after"
    norms = "attention.LayerNorm", "LayerNorm"

    def max_positions(self) -> int:
        if self.model.embeddings.position_embedding_type == "absolute":
            return super().max_positions()
        return self.config.max_position_embeddings

    def words_head(self, module: Any, activation: str, norm: Any, output: Any) -> Head:
        # Its decoder has no bias; the head adds one of its own.
        bias = self.whole.lm_head.bias.detach()
        return super().words_head(module, activation, norm, Linear(linear(output).weight, bias))
