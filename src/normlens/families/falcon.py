"""Falcon: branches side by side behind one norm or two, or one after the other; fused values."""

from typing import Any

from normlens.layers import Attention
from normlens.models import base


@base.register(
    "falcon",
    tiny=dict(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_kv_heads=2,
        ffn_hidden_size=24,
        new_decoder_architecture=True,
        bias=True,
        max_position_embeddings=48,
        bos_token_id=2,
        eos_token_id=2,
    ),
)
class Falcon(base.Decoder):
    layers_path = "h"
    feed_forward_paths = "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"
    activation_key = "activation"
    norm_first = True
    final_norm = "ln_f"

    def max_positions(self) -> int | None:
        return None if self.config.alibi else self.config.max_position_embeddings

    def attention(self, block: Any) -> Attention:
        attention = block.self_attention
        heads, groups = attention.num_heads, attention.num_kv_heads
        # Each group has the queries of its heads, then one key and one value.
        return base.attention_of(
            attention,
            base.interleaved_values(attention.query_key_value, groups, heads // groups + 2),
            attention.dense,
            heads,
            groups,
        )

    @property
    def side_by_side(self) -> bool:  # type: ignore[override]
        return self.config.new_decoder_architecture or self.config.parallel_attn

    @property
    def norms(self) -> tuple[str, ...]:  # type: ignore[override]
        if not self.side_by_side:
            return "input_layernorm", "post_attention_layernorm"
        two = hasattr(self.blocks()[0], "ln_mlp")
        return ("ln_attn", "ln_mlp") if two else ("input_layernorm",)
