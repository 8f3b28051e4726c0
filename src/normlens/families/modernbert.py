"""ModernBERT, also as a decoder: pre-LN, GeGLU, and local attention in two layers of three."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from normlens import layers
from normlens.models import base
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


@base.register("modernbert", tiny=_TINY)
class ModernBert(base.Adapter):
    layers_path = "layers"
    final_norm = "final_norm"

    def masked_head(self, model: Any) -> layers.Head | None:
        head, activation = model.head, self.config.classifier_activation
        return self.words_head(head.dense, activation, head.norm, model.decoder)

    def sequence_head(self, model: Any) -> layers.Head | None:
        reads = layers.MEAN if self.config.classifier_pooling == "mean" else layers.FIRST
        return self.classifier(layers.SEQUENCES, reads, model.classifier, *self._transform(model))

    def token_head(self, model: Any) -> layers.Head | None:
        return self.classifier(layers.TOKENS, layers.ANY, model.classifier, *self._transform(model))

    def _transform(self, model: Any) -> tuple[layers.HeadStep, ...]:
        head = model.head
        return base.transform(
            head.dense, self.config.classifier_activation, base.layer_norm(head.norm)
        )

    def reach(self, block: Any) -> layers.Reach:
        if block.attn.sliding_window is None:
            return layers.Reach()
        # The module keeps an exclusive bound; half the window lies on each side.
        side = block.attn.sliding_window - 1
        return layers.Reach(side, side)

    def attention(self, block: Any) -> layers.Attention:
        attention, d = block.attn, self.config.hidden_size
        return self._attend(attention, base.columns(attention.Wqkv, 2 * d, 3 * d))

    def _attend(self, attention: Any, value: layers.Linear) -> layers.Attention:
        heads = self.config.num_attention_heads
        return base.attention_of(attention, value, attention.Wo, heads)

    def steps(self, block: Any) -> list[layers.Step]:
        # The embeddings end in a norm already, so the first layer has none.
        first_norm = (
            [] if isinstance(block.attn_norm, nn.Identity) else [base.layer_norm(block.attn_norm)]
        )
        return [
            layers.Branch(),
            *first_norm,
            self.attention(block),
            layers.Residual(),
            layers.Branch(),
            base.layer_norm(block.mlp_norm),
            base.fused_gate(block.mlp.Wi, block.mlp.Wo, self.config.hidden_activation),
            layers.Residual(),
        ]


@base.register("modernbert-decoder", tiny=dict(_TINY, local_attention=6))
class ModernBertDecoder(ModernBert):
    causal = True

    def causal_head(self, model: Any) -> layers.Head | None:
        head, activation = model.lm_head, self.config.classifier_activation
        words = self.words_head(head.dense, activation, head.norm, model.decoder)
        return replace(words, task=layers.CAUSAL)

    def sequence_head(self, model: Any) -> layers.Head | None:
        return self.classifier(
            layers.SEQUENCES, layers.LAST, model.classifier, *self._transform(model)
        )

    def attention(self, block: Any) -> layers.Attention:
        return self._attend(block.attn, base.linear(block.attn.v_proj))

    def reach(self, block: Any) -> layers.Reach:
        check_causal(self.config, "ModernBERT's decoder")
        window = block.attn.sliding_window
        return layers.Reach(None if window is None else window - 1, 0)
