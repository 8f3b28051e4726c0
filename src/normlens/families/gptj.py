"""GPT-J and CodeGen: attention and feed-forward side by side behind one shared norm."""

from __future__ import annotations

from typing import Any

from normlens.layers import (
    Attention,
    Branch,
    FeedForward,
    HeadStep,
    Linear,
    ParallelFeedForward,
    Residual,
    Step,
)
from normlens.models.base import Decoder, interleaved_values, layer_norm, linear, register
from normlens.models.tiny import GPT


@register("gptj", tiny=dict(GPT, rotary_dim=2))
class GPTJ(Decoder):
    def blocks(self) -> list[Any]:
        return list(self.model.h)

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.ln_f)]

    def value(self, attention: Any) -> Linear:
        return linear(attention.v_proj)

    def steps(self, block: Any) -> list[Step]:
        attention, mlp = block.attn, block.mlp
        heads = attention.num_attention_heads
        feed_forward = FeedForward(
            up=linear(mlp.fc_in),
            down=linear(mlp.fc_out),
            activation=self.config.activation_function,
            module=mlp.fc_out,
        )
        return [
            Branch(),
            layer_norm(block.ln_1),
            Attention(
                value=self.value(attention),
                output=linear(attention.out_proj),
                heads=heads,
                groups=heads,
                weights=attention,
                module=attention.out_proj,
            ),
            ParallelFeedForward(feed_forward, layer_norm(block.ln_1)),
            Residual(),
        ]


@register("codegen", tiny=dict(GPT, rotary_dim=2))
class CodeGen(GPTJ):
    def value(self, attention: Any) -> Linear:
        # The projection was laid out for four devices, each with its queries, values and keys.
        return interleaved_values(attention.qkv_proj, 4, place=1)
