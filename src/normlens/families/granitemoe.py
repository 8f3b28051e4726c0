"""Granite's mixtures: experts, a fused shared one beside them, and a factor behind each branch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from normlens.families.granite import Granite
from normlens.layers import Experts, FeedForward
from normlens.models.base import columns, linear, register
from normlens.models.parts import StackedExperts, routed
from normlens.models.tiny import EXPERTS

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
        return replace(experts, shared=self.fused(shared), module=None)

    def fused(self, mlp: Any) -> FeedForward:
        m = mlp.output_linear.weight.shape[1]
        return FeedForward(
            gate=columns(mlp.input_linear, 0, m),
            up=columns(mlp.input_linear, m, 2 * m),
            down=linear(mlp.output_linear),
            activation=self.activation,
            module=mlp.output_linear,
        )
