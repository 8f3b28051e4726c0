"""ModernBERT, also as a decoder: pre-LN, GeGLU, and local attention in two layers of three."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    norms = "attn_norm", "mlp_norm"  # the embeddings end in a norm, so the first layer lacks one
    norm_first = True
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
        activation = layers.Elementwise(self.config.classifier_activation)
        return base.dense(model.head.dense), activation, base.layer_norm(model.head.norm)

    def window(self, block: Any) -> int | None:
        return block.attn.sliding_window  # the target included; half the window lies on each side

    def attention(self, block: Any) -> layers.Attention:
        attention, d = block.attn, self.config.hidden_size
        return self._attend(attention, base.columns(attention.Wqkv, 2 * d, 3 * d))

    def _attend(self, attention: Any, value: layers.Linear) -> layers.Attention:
        heads = self.config.num_attention_heads
        return base.attention_of(attention, value, attention.Wo, heads)

    def feed_forward(self, block: Any) -> layers.FeedForward:
        return base.fused_gate(block.mlp.Wi, block.mlp.Wo, self.config.hidden_activation)


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
        return super().reach(block)
