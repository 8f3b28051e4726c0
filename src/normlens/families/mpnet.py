"""MPNet: RoBERTa with a relative position bias in the attention weights."""

from __future__ import annotations

from typing import Any

from normlens.families.bert import Roberta
from normlens.layers import Attention
from normlens.models.base import attention_of, register
from normlens.models.tiny import ENCODER


@register("mpnet", tiny=ENCODER)
class MPNet(Roberta):
    causal = False
    norms = "attention.LayerNorm", "output.LayerNorm"

    def attention(self, block: Any) -> Attention:
        attention = block.attention.attn
        heads = attention.num_attention_heads
        # The module returns its weights only on request; they all pass through the dropout.
        return attention_of(attention.dropout, attention.v, attention.o, heads)
