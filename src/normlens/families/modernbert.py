"""ModernBERT, also as a decoder: pre-LN, GeGLU, and local attention in two layers of three."""

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
    attention_paths: tuple[str, str, str] = ("attn", "attn.Wqkv", "attn.Wo")
    feed_forward_paths = "mlp.Wi", "mlp.Wo"
    fuses_gate = True
    activation_key = "hidden_activation"
    norms = "attn_norm", "mlp_norm"  # the embeddings end in a norm, so the first layer lacks one
    norm_first = True
    final_norm = "final_norm"

    masked_paths = "head.dense", "head.norm", "decoder"

    @property
    def masked_activation(self) -> str:  # type: ignore[override]
        return self.config.classifier_activation

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

    def value(self, module: Any) -> layers.Linear:
        return base.last_third(module)


@base.register("modernbert-decoder", tiny=dict(_TINY, local_attention=6))
class ModernBertDecoder(ModernBert):
    causal = True
    attention_paths = "attn", "attn.v_proj", "attn.Wo"
    masked_paths = "lm_head.dense", "lm_head.norm", "decoder"

    def causal_head(self, model: Any) -> layers.Head | None:
        words = self.masked_head(model)
        return None if words is None else replace(words, task=layers.CAUSAL)

    def sequence_head(self, model: Any) -> layers.Head | None:
        return self.classifier(
            layers.SEQUENCES, layers.LAST, model.classifier, *self._transform(model)
        )

    def value(self, module: Any) -> layers.Linear:
        return base.linear(module)

    def reach(self, block: Any) -> layers.Reach:
        check_causal(self.config, "ModernBERT's decoder")
        return super().reach(block)
