"""BERT's block with its norms first: Megatron-BERT, RoBERTa-PreLayerNorm, XLM-RoBERTa-XL, ESM."""

from __future__ import annotations

from typing import Any

from normlens.families.bert import Bert, Roberta
from normlens.layers import HeadStep, Linear, Norm
from normlens.models.base import layer_norm, linear, register
from normlens.models.tiny import ENCODER


@register("megatron-bert", tiny=ENCODER)
class MegatronBert(Bert):
    norm_first = True

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.encoder.ln)]

    def norms(self, block: Any) -> tuple[Norm, Norm]:
        return layer_norm(block.attention.ln), layer_norm(block.ln)


@register("roberta-prelayernorm", tiny=ENCODER)
class RobertaPreLayerNorm(Roberta):
    norm_first = True

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.LayerNorm)]

    def norms(self, block: Any) -> tuple[Norm, Norm]:
        return layer_norm(block.attention.LayerNorm), layer_norm(block.intermediate.LayerNorm)


@register("xlm-roberta-xl", tiny=ENCODER)
class XLMRobertaXL(RobertaPreLayerNorm):
    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.encoder.LayerNorm)]

    def norms(self, block: Any) -> tuple[Norm, Norm]:
        return layer_norm(block.attention.self_attn_layer_norm), layer_norm(block.LayerNorm)


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

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.encoder.emb_layer_norm_after)]

    def norms(self, block: Any) -> tuple[Norm, Norm]:
        return layer_norm(block.attention.LayerNorm), layer_norm(block.LayerNorm)

    def max_positions(self) -> int:
        if self.model.embeddings.position_embedding_type == "absolute":
            return super().max_positions()
        return self.config.max_position_embeddings

    def masked_output(self, head: Any) -> Linear:
        # Its decoder has no bias; the head adds one of its own.
        return Linear(linear(head.decoder).weight, head.bias.detach())
