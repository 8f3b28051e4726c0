"""GPT-NeoX (Pythia): attention and feed-forward side by side, or one after the other."""

from __future__ import annotations

from typing import Any

from normlens.layers import (
    Attention,
    Branch,
    FeedForward,
    HeadStep,
    ParallelFeedForward,
    Residual,
    Step,
)
from normlens.models.base import (
    Decoder,
    interleaved_values,
    layer_norm,
    linear,
    register,
    sublayers,
)
from normlens.models.tiny import DECODER


@register("gpt_neox", tiny=DECODER)
class GPTNeoX(Decoder):
    def blocks(self) -> list[Any]:
        return list(self.model.layers)

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.final_layer_norm)]

    def steps(self, block: Any) -> list[Step]:
        heads = self.config.num_attention_heads
        attention = Attention(
            value=interleaved_values(block.attention.query_key_value, heads),
            output=linear(block.attention.dense),
            heads=heads,
            groups=heads,
            weights=block.attention,
            module=block.attention.dense,
        )
        feed_forward = FeedForward(
            up=linear(block.mlp.dense_h_to_4h),
            down=linear(block.mlp.dense_4h_to_h),
            activation=self.config.hidden_act,
            module=block.mlp.dense_4h_to_h,
        )
        first, second = (
            layer_norm(block.input_layernorm),
            layer_norm(block.post_attention_layernorm),
        )
        if block.use_parallel_residual:
            parallel = ParallelFeedForward(feed_forward, second)
            return [Branch(), first, attention, parallel, Residual()]
        return sublayers([(first, attention), (second, feed_forward)], norm_first=True)
