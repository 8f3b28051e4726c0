"""gpt-oss: experts with limits and biases, attention with sinks, windows in every other layer."""

from dataclasses import replace
from typing import Any

from normlens.errors import UnsupportedModelError
from normlens.families.llama import MIXED, Llama
from normlens.layers import Attention, Experts
from normlens.models.base import register
from normlens.models.parts import StackedExperts, routed
from normlens.models.tiny import EXPERTS

#: The factor α of the gate ``z σ(αz)`` in the configuration, and what that activation is called.
_ACTIVATIONS = {1.702: "quick_gelu", 1.0: "silu"}


@register(
    "gpt_oss",
    tiny=dict(
        EXPERTS,
        attention_bias=True,
        sliding_window=3,
        layer_types=MIXED,
        swiglu_limit=0.5,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    ),
)
class GptOss(Llama):
    def attention(self, block: Any) -> Attention:
        return replace(super().attention(block), sinks=True)

    def experts(self, mlp: Any) -> Experts:
        experts = mlp.experts
        if experts.alpha not in _ACTIVATIONS:
            raise UnsupportedModelError(
                f"the experts of this model have a gate z σ(αz) with α = {experts.alpha:g}, whose "
                f"slope is not known; known are α = {' and '.join(map(str, _ACTIVATIONS))}"
            )
        members = StackedExperts(
            experts,
            _ACTIVATIONS[experts.alpha],
            transposed=True,
            alternating=True,
            limit=experts.limit,
        )
        return routed(mlp, members, self.config.num_experts_per_tok)
