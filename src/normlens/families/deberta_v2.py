"""DeBERTa v2 and v3: BERT's block with disentangled attention."""

from __future__ import annotations

from typing import Any

from normlens.families.bert import Bert
from normlens.layers import ANY, FIRST, MASKED, SEQUENCES, Attention, Elementwise, Head, Linear
from normlens.models.base import dense, layer_norm, linear, register, transform
from normlens.models.tiny import ENCODER


@register(
    "deberta-v2",
    tiny=dict(
        ENCODER,
        relative_attention=True,
        position_buckets=4,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
)
class DebertaV2(Bert):
    causal = False

    def masked_head(self, model: Any) -> Head | None:
        if model.legacy:
            return super().masked_head(model)
        # The words' embeddings are the output, beside a bias of the head's own.
        head = model.lm_predictions.lm_head
        steps = transform(head.dense, self.config.hidden_act, layer_norm(head.LayerNorm))
        words = self.model.embeddings.word_embeddings.weight
        output = Linear(words.detach().T, head.bias.detach())
        return Head(MASKED, ANY, steps=steps, output=output)

    def sequence_head(self, model: Any) -> Head | None:
        pooler = dense(model.pooler.dense), Elementwise(self.config.pooler_hidden_act)
        return self.classifier(SEQUENCES, FIRST, model.classifier, *pooler)

    def outside_scopes(self) -> str | None:
        if getattr(self.model.encoder, "conv", None) is None:
            return None
        return (
            f"a convolution over {self.config.conv_kernel_size} tokens mixes tokens between layers "
            "0 and 1; what layer 1 calls a token is already a blend of its neighbours"
        )

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
