"""MPNet: RoBERTa with a relative position bias in the attention weights."""

from normlens.families.bert import Roberta
from normlens.models.base import register
from normlens.models.tiny import ENCODER


@register("mpnet", tiny=ENCODER)
class MPNet(Roberta):
    causal = False
    # The module returns its weights only on request; they all pass through the dropout.
    attention_paths = "attention.attn.dropout", "attention.attn.v", "attention.attn.o"
    norms = "attention.LayerNorm", "output.LayerNorm"
