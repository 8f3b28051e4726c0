"""ModernBERT, also as a decoder: pre-LN, GeGLU, and local attention in two layers of three."""

from __future__ import annotations

from typing import Any

from torch import nn

from normlens.layers import (
    ANY,
    CAUSAL,
    FIRST,
    LAST,
    MASKED,
    MEAN,
    SEQUENCES,
    TOKENS,
    Attention,
    Branch,
    FeedForward,
    Head,
    HeadStep,
    Linear,
    Reach,
    Residual,
    Step,
)
from normlens.models.base import Adapter, columns, layer_norm, linear, register, transform
from normlens.models.tiny import ENCODER
from normlens.models.unwrapping import check_causal

_TINY = dict(
    ENCODER,
    num_hidden_layers=3,
    local_attention=4,
    global_attn_every_n_layers=3,
    mlp_bias=True,
    norm_bias=True,
    attention_bias=True,
    cls_token_id=0,
    sep_token_id=2,
)


@register("modernbert", tiny=_TINY)
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

    def attention(self, block: Any) -> Attention:
        attention, d = block.attn, self.config.hidden_size
        return self._attend(attention, columns(attention.Wqkv, 2 * d, 3 * d))

    def _attend(self, attention: Any, value: Linear) -> Attention:
        heads = self.config.num_attention_heads
        return Attention(
            value=value,
            output=linear(attention.Wo),
            heads=heads,
            groups=heads,
            weights=attention,
            module=attention.Wo,
        )

    def steps(self, block: Any) -> list[Step]:
        mlp, m = block.mlp, self.config.intermediate_size
        # The embeddings end in a norm already, so the first layer has none.
        first_norm = (
            [] if isinstance(block.attn_norm, nn.Identity) else [layer_norm(block.attn_norm)]
        )
        return [
            Branch(),
            *first_norm,
            self.attention(block),
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


@register("modernbert-decoder", tiny=dict(_TINY, local_attention=6))
class ModernBertDecoder(ModernBert):
    causal = True

    def causal_head(self, model: Any) -> Head | None:
        norm = layer_norm(model.lm_head.norm)
        steps = transform(model.lm_head.dense, self.config.classifier_activation, norm)
        return Head(CAUSAL, ANY, tuple(self.end()), steps, linear(model.decoder))

    def sequence_head(self, model: Any) -> Head | None:
        return self.classifier(SEQUENCES, LAST, model.classifier, *self._transform(model))

    def attention(self, block: Any) -> Attention:
        return self._attend(block.attn, linear(block.attn.v_proj))

    def reach(self, block: Any) -> Reach:
        check_causal(self.config, "ModernBERT's decoder")
        window = block.attn.sliding_window
        return Reach(None if window is None else window - 1, 0)
