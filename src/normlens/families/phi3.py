"""Phi-3 and Phi-4: Llama's block with fused projections."""

from typing import Any

from normlens.families.llama import Mistral
from normlens.layers import Linear
from normlens.models.base import columns, linear, register
from normlens.models.tiny import DECODER


@register("phi3", tiny=dict(DECODER, num_key_value_heads=2, sliding_window=3))
class Phi3(Mistral):
    attention_paths = "self_attn", "self_attn.qkv_proj", "self_attn.o_proj"
    feed_forward_paths = "mlp.gate_up_proj", "mlp.down_proj"
    fuses_gate = True

    def value(self, module: Any) -> Linear:
        config, width = self.config, linear(module).weight.shape[1]
        # Its queries are of all heads, its keys and values of each group.
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        return columns(module, width - width // heads * config.num_key_value_heads, width)
