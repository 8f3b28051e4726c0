"""Nomic BERT and its kin: post-LN with rotary positions; SwiGLU, or no gate in Jina's."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, Head
from normlens.models import base
from normlens.models.tiny import ENCODER


@base.register("nomic_bert", tiny=dict(ENCODER, head_dim=4))
class NomicBert(base.Adapter):
    layers_path = "layers"
    norms = "post_attention_layernorm", "post_mlp_layernorm"

    def masked_head(self, model: Any) -> Head | None:
        head, inner = model.cls.predictions, model.cls.predictions.transform
        return self.words_head(inner.dense, self.config.hidden_act, inner.layer_norm, head.decoder)

    def sequence_head(self, model: Any) -> Head | None:
        return self.pooled_head(self.model.pooler.dense, "tanh", model.classifier)

    def attention(self, block: Any) -> Attention:
        attention, heads = block.self_attn, self.config.num_attention_heads
        return base.attention_of(attention, attention.v_proj, attention.o_proj, heads)

    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return base.feed_forward_of(mlp.up_proj, mlp.down_proj, self.activation, mlp.gate_proj)


@base.register("gte", tiny=dict(ENCODER, head_dim=4))
class Gte(NomicBert):
    def masked_head(self, model: Any) -> Head | None:
        head = model.lm_head
        return self.words_head(head.dense, "gelu", head.layer_norm, head.decoder)


@base.register("jina_embeddings_v3", tiny=dict(ENCODER, head_dim=4))
class JinaEmbeddings(Gte):
    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return base.feed_forward_of(mlp.fc1, mlp.fc2, self.activation)

    def sequence_head(self, model: Any) -> Head | None:
        head = model.classifier
        return self.pooled_head(head.dense, "tanh", head.out_proj)
