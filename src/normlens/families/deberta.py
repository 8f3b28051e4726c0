"""DeBERTa: BERT's block with disentangled attention, whose positions are inside α."""

from dataclasses import replace
from typing import Any

from normlens.errors import UnsupportedModelError
from normlens.families.bert import Bert
from normlens.layers import Attention, Head, Linear
from normlens.models.base import interleaved_values, register
from normlens.models.reading import read_tensor
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
    # The module returns its weights only on request; they all pass through the dropout.
    attention_paths = (
        "attention.self.dropout",
        "attention.self.value_proj",
        "attention.output.dense",
    )
    pooled_paths = "pooler.dense", "classifier"

    @property
    def pooled_activation(self) -> str:  # type: ignore[override]
        return self.config.pooler_hidden_act

    def masked_head(self, model: Any) -> Head | None:
        if model.legacy:
            return super().masked_head(model)
        # The words' embeddings are the output, beside a bias of the head's own.
        head = model.lm_predictions.lm_head
        words = self.model.embeddings.word_embeddings.weight
        output = Linear(words.detach().T, head.bias.detach())
        return self.words_head(head.dense, self.config.hidden_act, head.LayerNorm, output)

    def outside_scopes(self) -> str | None:
        if getattr(self.model.encoder, "conv", None) is None:
            return None
        return (
            f"a convolution over {self.config.conv_kernel_size} tokens mixes tokens between layers "
            "0 and 1; what layer 1 calls a token is already a blend of its neighbours"
        )


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
    """The first one: a single projection, whose biases are added outside it."""

    attention_paths = "attention.self.dropout", "attention.self.in_proj", "attention.output.dense"

    def value(self, module: Any) -> Linear:
        return interleaved_values(module, self.config.num_attention_heads)

    def attention(self, block: Any) -> Attention:
        inner = block.attention.self
        if inner.talking_head:
            raise UnsupportedModelError(
                "this DeBERTa mixes its heads behind the softmax (talking_head), so no head has "
                "attention weights of its own"
            )
        attention = super().attention(block)
        value = replace(attention.value, bias=read_tensor(inner, "v_bias"), bias_outside=True)
        return replace(attention, value=value)
