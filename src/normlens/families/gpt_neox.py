"""GPT-NeoX (Pythia): attention and feed-forward side by side, or one after the other."""

from typing import Any

from normlens.layers import Linear
from normlens.models import base
from normlens.models.tiny import DECODER


@base.register("gpt_neox", tiny=DECODER)
class GPTNeoX(base.Decoder):
    layers_path = "layers"
    attention_paths = "attention", "attention.query_key_value", "attention.dense"
    feed_forward_paths = "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"
    norms = "input_layernorm", "post_attention_layernorm"
    norm_first = True
    final_norm = "final_layer_norm"

    def value(self, module: Any) -> Linear:
        return base.interleaved_values(module, self.config.num_attention_heads)

    @property
    def side_by_side(self) -> bool:  # type: ignore[override]
        return self.config.use_parallel_residual
