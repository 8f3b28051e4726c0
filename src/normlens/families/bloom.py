"""BLOOM: pre-LN with ALiBi, a special GELU, and residuals that may branch behind the norm."""

from typing import Any

from normlens.layers import Branch, Linear, Residual, Step
from normlens.models import base


@base.register("bloom", tiny=dict(vocab_size=64, hidden_size=16, n_layer=2, n_head=4))
class Bloom(base.Decoder):
    layers_path = "h"
    # The attention module itself adds the residual as well.
    attention_paths = (
        "self_attention.attention_dropout",
        "self_attention.query_key_value",
        "self_attention.dense",
    )
    feed_forward_paths = "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"
    norms = "input_layernorm", "post_attention_layernorm"
    norm_first = True
    final_norm = "ln_f"
    activation = "bloom_gelu"

    def max_positions(self) -> None:
        return None  # ALiBi has no position table

    def value(self, module: Any) -> Linear:
        return base.interleaved_values(module, self.config.num_attention_heads)

    def steps(self, block: Any) -> list[Step]:
        if not block.apply_residual_connection_post_layernorm:
            return super().steps(block)
        (first,), (second,) = self.norms_at(block, self.norms)
        attended: list[Step] = [first, Branch(), self.attention(block), Residual()]
        return [*attended, second, Branch(), self.feed_forward(block), Residual()]
