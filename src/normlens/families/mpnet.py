"""MPNet: RoBERTa with a relative position bias in the attention weights."""

from __future__ import annotations

from typing import Any

from normlens.families.bert import Roberta
from normlens.layers import Attention, Norm
from normlens.models.base import layer_norm, linear, register
from normlens.models.tiny import ENCODER


@register("mpnet", tiny=ENCODER)
class MPNet(Roberta):
    causal = False

    def attention(self, block: Any) -> Attention:
        attention = block.attention.attn
        heads = attention.num_attention_heads
        return Attention(
            value=linear(attention.v),
            output=linear(attention.o),
            heads=heads,
            groups=heads,
            # The module returns its weights only on request; they all pass the dropout.
            weights=attention.dropout,
            module=attention.o,
        )

    def norms(self, block: Any) -> tuple[Norm, Norm]:
        return layer_norm(block.attention.LayerNorm), layer_norm(block.output.LayerNorm)
