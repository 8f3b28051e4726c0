"""GPT-J and CodeGen: attention and feed-forward side by side behind one shared norm."""

from __future__ import annotations

from typing import Any

from normlens.layers import Linear, Step
from normlens.models import base
from normlens.models.tiny import GPT


@base.register("gptj", tiny=dict(GPT, rotary_dim=2))
class GPTJ(base.Decoder):
    layers_path = "h"
    final_norm = "ln_f"

    def value(self, attention: Any) -> Linear:
        return base.linear(attention.v_proj)

    def steps(self, block: Any) -> list[Step]:
        attention, mlp = block.attn, block.mlp
        heads = attention.num_attention_heads
        return base.side_by_side(
            base.layer_norm(block.ln_1),
            base.attention_of(attention, self.value(attention), attention.out_proj, heads),
            base.feed_forward_of(mlp.fc_in, mlp.fc_out, self.config.activation_function),
        )


@base.register("codegen", tiny=dict(GPT, rotary_dim=2))
class CodeGen(GPTJ):
    def value(self, attention: Any) -> Linear:
        # The projection was laid out for four devices, each with its queries, values and keys.
        return base.interleaved_values(attention.qkv_proj, 4, place=1)
