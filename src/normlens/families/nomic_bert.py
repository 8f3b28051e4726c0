"""Nomic BERT and its kin: post-LN with rotary positions; SwiGLU, or no gate in Jina's."""

from __future__ import annotations

from typing import Any

from normlens.layers import (
    ANY,
    FIRST,
    MASKED,
    SEQUENCES,
    Attention,
    Elementwise,
    FeedForward,
    Head,
    Step,
)
from normlens.models.base import Adapter, dense, layer_norm, linear, register, sublayers, transform
from normlens.models.tiny import ENCODER


@register("nomic_bert", tiny=dict(ENCODER, head_dim=4))
class NomicBert(Adapter):
    def blocks(self) -> list[Any]:
        return list(self.model.layers)

    def masked_head(self, model: Any) -> Head | None:
        head = model.cls.predictions
        norm = layer_norm(head.transform.layer_norm)
        steps = transform(head.transform.dense, self.config.hidden_act, norm)
        return Head(MASKED, ANY, steps=steps, output=linear(head.decoder))

    def sequence_head(self, model: Any) -> Head | None:
        pooler = dense(self.model.pooler.dense)
        return self.classifier(SEQUENCES, FIRST, model.classifier, pooler, Elementwise("tanh"))

    def attention(self, block: Any) -> Attention:
        attention, heads = block.self_attn, self.config.num_attention_heads
        return Attention(
            value=linear(attention.v_proj),
            output=linear(attention.o_proj),
            heads=heads,
            groups=heads,
            weights=attention,
            module=attention.o_proj,
        )

    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return FeedForward(
            gate=linear(mlp.gate_proj),
            up=linear(mlp.up_proj),
            down=linear(mlp.down_proj),
            activation=self.config.hidden_act,
            module=mlp.down_proj,
        )

    def steps(self, block: Any) -> list[Step]:
        return sublayers(
            [
                (layer_norm(block.post_attention_layernorm), self.attention(block)),
                (layer_norm(block.post_mlp_layernorm), self.feed_forward(block)),
            ],
            norm_first=False,
        )


@register("gte", tiny=dict(ENCODER, head_dim=4))
class Gte(NomicBert):
    def masked_head(self, model: Any) -> Head | None:
        head = model.lm_head
        steps = transform(head.dense, "gelu", layer_norm(head.layer_norm))
        return Head(MASKED, ANY, steps=steps, output=linear(head.decoder))


@register("jina_embeddings_v3", tiny=dict(ENCODER, head_dim=4))
class JinaEmbeddings(Gte):
    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return FeedForward(
            up=linear(mlp.fc1),
            down=linear(mlp.fc2),
            activation=self.config.hidden_act,
            module=mlp.fc2,
        )

    def sequence_head(self, model: Any) -> Head | None:
        head = model.classifier
        first = dense(head.dense)
        return self.classifier(SEQUENCES, FIRST, head.out_proj, first, Elementwise("tanh"))
