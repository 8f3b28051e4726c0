"""GPT-NeoX (Pythia): attention and feed-forward side by side, or one after the other."""

from __future__ import annotations

from typing import Any

from normlens.layers import Branch, HeadStep, ParallelFeedForward, Residual, Step
from normlens.models import base
from normlens.models.tiny import DECODER


@base.register("gpt_neox", tiny=DECODER)
class GPTNeoX(base.Decoder):
    def blocks(self) -> list[Any]:
        return list(self.model.layers)

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.final_layer_norm)]

    def steps(self, block: Any) -> list[Step]:
        heads = self.config.num_attention_heads
        attention = base.attention_of(
            block.attention,
            base.interleaved_values(block.attention.query_key_value, heads),
            block.attention.dense,
            heads,
        )
        feed_forward = base.feed_forward_of(
            block.mlp.dense_h_to_4h, block.mlp.dense_4h_to_h, self.config.hidden_act
        )
        first, second = (
            base.layer_norm(block.input_layernorm),
            base.layer_norm(block.post_attention_layernorm),
        )
        if block.use_parallel_residual:
            parallel = ParallelFeedForward(feed_forward, second)
            return [Branch(), first, attention, parallel, Residual()]
        return base.sublayers([(first, attention), (second, feed_forward)], norm_first=True)
