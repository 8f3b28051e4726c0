"""DeBERTa (v1): disentangled attention with one projection, whose biases are added outside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from normlens.errors import UnsupportedModelError
from normlens.families.deberta_v2 import DebertaV2
from normlens.layers import Attention
from normlens.models.base import interleaved_values, linear, register
from normlens.models.reading import read_tensor
from normlens.models.tiny import ENCODER


@register(
    "deberta",
    tiny=dict(
        ENCODER,
        relative_attention=True,
        max_relative_positions=4,
        pos_att_type=["c2p", "p2c"],
        position_biased_input=False,
        type_vocab_size=0,
    ),
)
class Deberta(DebertaV2):
    def attention(self, block: Any) -> Attention:
        attention = block.attention
        if attention.self.talking_head:
            raise UnsupportedModelError(
                "this DeBERTa mixes its heads behind the softmax (talking_head), so no head has "
                "attention weights of its own"
            )
        heads = attention.self.num_attention_heads
        value = interleaved_values(attention.self.in_proj, heads)
        return Attention(
            value=replace(value, bias=read_tensor(attention.self, "v_bias"), bias_outside=True),
            output=linear(attention.output.dense),
            heads=heads,
            groups=heads,
            # The module returns its weights only on request; they all pass through the dropout.
            weights=attention.self.dropout,
            module=attention.output.dense,
        )
