"""Granite: Llama's block with a factor behind each branch; mixtures have experts."""

from dataclasses import replace
from typing import Any

from normlens.families.llama import Llama
from normlens.layers import Experts, FeedForward
from normlens.models.base import fused_gate, register
from normlens.models.parts import StackedExperts, routed
from normlens.models.tiny import EXPERTS, GROUPED


@register(
    "granite",
    tiny=dict(
        GROUPED,
        attention_bias=True,
        mlp_bias=True,
        residual_multiplier=0.3,
        embedding_multiplier=5.0,
        attention_multiplier=0.4,
        logits_scaling=4.0,
    ),
)
class Granite(Llama):
    # Embeddings are multiplied before the first layer, and scores inside the attention weights.

    def factors(self, block: Any) -> tuple[float, float]:
        return block.residual_multiplier, block.residual_multiplier

    def score_scale(self, model: Any) -> float:
        return 1 / self.config.logits_scaling


_FACTORS = dict(
    EXPERTS,
    attention_bias=True,
    residual_multiplier=0.3,
    embedding_multiplier=5.0,
    attention_multiplier=0.4,
    logits_scaling=4.0,
)


@register("granitemoeshared", tiny=dict(_FACTORS, shared_intermediate_size=20))
@register("granitemoe", tiny=_FACTORS)
class GraniteMoe(Granite):
    def feed_forward(self, block: Any) -> FeedForward | Experts:
        mixture = block.block_sparse_moe
        experts = routed(
            mixture,
            StackedExperts(mixture.experts, self.activation),
            self.config.num_experts_per_tok,
            scale=block.residual_multiplier,
        )
        shared = getattr(block, "shared_mlp", None)
        if shared is None:
            return experts
        # The layer adds what the shared expert returns to what the module of the others returns, so
        # that no module returns the sum.
        expert = fused_gate(shared.input_linear, shared.output_linear, self.activation)
        return replace(experts, shared=expert, module=None)
