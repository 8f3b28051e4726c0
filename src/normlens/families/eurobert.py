"""EuroBERT: Llama's block in an encoder."""

from dataclasses import replace
from typing import Any

from normlens.families.llama import Llama
from normlens.layers import ANY, FIRST, MASKED, MEAN, SEQUENCES, Elementwise, Head
from normlens.models.base import dense, linear, register
from normlens.models.tiny import GROUPED


@register("eurobert", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True, mask_token_id=63))
class EuroBert(Llama):
    causal = False

    def masked_head(self, model: Any) -> Head | None:
        return Head(MASKED, ANY, tuple(self.end()), output=linear(model.lm_head))

    def sequence_head(self, model: Any) -> Head | None:
        steps = (dense(model.dense), Elementwise("gelu"))
        if model.classifier_pooling == "late":
            # Every token is scored, and the scores are averaged.
            head = self.classifier(SEQUENCES, MEAN, model.classifier)
            return replace(head, body=(*head.body, *steps))
        reads = MEAN if model.classifier_pooling == "mean" else FIRST
        return self.classifier(SEQUENCES, reads, model.classifier, *steps)
