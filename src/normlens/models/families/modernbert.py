"""ModernBERT: pre-LN, GeGLU, and local attention in two layers of three."""

from __future__ import annotations

from typing import Any

from torch import nn

from normlens.components import Attention, Branch, FeedForward, Reach, Residual, Step
from normlens.heads import ANY, FIRST, MASKED, MEAN, SEQUENCES, TOKENS, Head, HeadStep
from normlens.models.base import Adapter, columns, layer_norm, linear, register
from normlens.models.heads import transform
from normlens.models.tiny import ENCODER


@register(
    "modernbert",
    tiny=dict(
        ENCODER,
        num_hidden_layers=3,
        local_attention=4,
        global_attn_every_n_layers=3,
        mlp_bias=True,
        norm_bias=True,
        attention_bias=True,
        cls_token_id=0,
        sep_token_id=2,
    ),
)
class ModernBert(Adapter):
    def blocks(self) -> list[Any]:
        return list(self.model.layers)

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.final_norm)]

    def masked_head(self, model: Any) -> Head | None:
        return Head(MASKED, ANY, tuple(self.end()), self._transform(model), linear(model.decoder))

    def sequence_head(self, model: Any) -> Head | None:
        reads = MEAN if self.config.classifier_pooling == "mean" else FIRST
        return self.classifier(SEQUENCES, reads, model.classifier, *self._transform(model))

    def token_head(self, model: Any) -> Head | None:
        return self.classifier(TOKENS, ANY, model.classifier, *self._transform(model))

    def _transform(self, model: Any) -> tuple[HeadStep, ...]:
        head = model.head
        return transform(head.dense, self.config.classifier_activation, layer_norm(head.norm))

    def reach(self, block: Any) -> Reach:
        if block.attn.sliding_window is None:
            return Reach()
        # The module keeps an exclusive bound; half the window lies on each side.
        side = block.attn.sliding_window - 1
        return Reach(side, side)

    def steps(self, block: Any) -> list[Step]:
        attention, mlp = block.attn, block.mlp
        d, m = self.config.hidden_size, self.config.intermediate_size
        heads = self.config.num_attention_heads
        # The embeddings end in a norm already, so the first layer has none.
        first_norm = (
            [] if isinstance(block.attn_norm, nn.Identity) else [layer_norm(block.attn_norm)]
        )
        return [
            Branch(),
            *first_norm,
            Attention(
                value=columns(attention.Wqkv, 2 * d, 3 * d),
                output=linear(attention.Wo),
                heads=heads,
                groups=heads,
                weights=attention,
                module=attention.Wo,
            ),
            Residual(),
            Branch(),
            layer_norm(block.mlp_norm),
            FeedForward(
                gate=columns(mlp.Wi, 0, m),
                up=columns(mlp.Wi, m, 2 * m),
                down=linear(mlp.Wo),
                activation=self.config.hidden_activation,
                module=mlp.Wo,
            ),
            Residual(),
        ]
