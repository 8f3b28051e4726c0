"""BLOOM: pre-LN with ALiBi, a special GELU, and residuals that may branch behind the norm."""

from __future__ import annotations

from typing import Any

from normlens.layers import Branch, HeadStep, Residual, Step
from normlens.models import base


@base.register("bloom", tiny=dict(vocab_size=64, hidden_size=16, n_layer=2, n_head=4))
class Bloom(base.Decoder):
    def blocks(self) -> list[Any]:
        return list(self.model.h)

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.ln_f)]

    def max_positions(self) -> None:
        return None  # ALiBi has no position table

    def steps(self, block: Any) -> list[Step]:
        attention, mlp = block.self_attention, block.mlp
        # The attention module itself adds the residual as well.
        attend = base.attention_of(
            attention.attention_dropout,
            base.interleaved_values(attention.query_key_value, attention.num_heads),
            attention.dense,
            attention.num_heads,
        )
        feed_forward = base.feed_forward_of(mlp.dense_h_to_4h, mlp.dense_4h_to_h, "bloom_gelu")
        first, second = (
            base.layer_norm(block.input_layernorm),
            base.layer_norm(block.post_attention_layernorm),
        )
        if block.apply_residual_connection_post_layernorm:
            attention_steps: list[Step] = [first, Branch(), attend, Residual()]
            return [*attention_steps, second, Branch(), feed_forward, Residual()]
        return base.sublayers([(first, attend), (second, feed_forward)], norm_first=True)
