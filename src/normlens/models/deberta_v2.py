"""DeBERTa v2 and v3: BERT's block with disentangled attention."""

from __future__ import annotations

from typing import Any

from normlens.components import Attention
from normlens.models.base import linear, register
from normlens.models.bert import Bert


@register("deberta-v2")
class DebertaV2(Bert):
    causal = False

    def attention(self, block: Any) -> Attention:
        attention = block.attention
        heads = attention.self.num_attention_heads
        return Attention(
            value=linear(attention.self.value_proj),
            output=linear(attention.output.dense),
            heads=heads,
            groups=heads,
            # The module returns its weights only on request; they all pass through the dropout.
            weights=attention.self.dropout,
            module=attention.output.dense,
        )
