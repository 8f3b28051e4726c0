"""Nomic BERT: post-LN with SwiGLU and rotary positions."""

from __future__ import annotations

from typing import Any

from normlens.components import Attention, Branch, FeedForward, Residual, Step
from normlens.heads import ANY, FIRST, MASKED, SEQUENCES, Elementwise, Head
from normlens.models.base import Adapter, layer_norm, linear, register
from normlens.models.heads import dense, transform
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

    def steps(self, block: Any) -> list[Step]:
        attention, mlp = block.self_attn, block.mlp
        heads = self.config.num_attention_heads
        return [
            Branch(),
            Attention(
                value=linear(attention.v_proj),
                output=linear(attention.o_proj),
                heads=heads,
                groups=heads,
                weights=attention,
                module=attention.o_proj,
            ),
            Residual(),
            layer_norm(block.post_attention_layernorm),
            Branch(),
            FeedForward(
                gate=linear(mlp.gate_proj),
                up=linear(mlp.up_proj),
                down=linear(mlp.down_proj),
                activation=self.config.hidden_act,
                module=mlp.down_proj,
            ),
            Residual(),
            layer_norm(block.post_mlp_layernorm),
        ]
