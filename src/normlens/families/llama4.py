"""Llama 4: experts whose input is weighed, not their output, and a shared one beside them."""

from typing import Any

from torch import Tensor

from normlens.families.llama import Llama
from normlens.layers import Experts, FeedForward, Reach
from normlens.models.base import register
from normlens.models.parts import StackedExperts
from normlens.models.tiny import EXPERTS
from normlens.models.unwrapping import check_causal


@register(
    "llama4_text",
    tiny=dict(
        EXPERTS,
        attention_bias=True,
        intermediate_size_mlp=20,
        moe_layers=[1],
        no_rope_layers=[1, 0],
        attention_chunk_size=48,
        floor_scale=2,
        attn_scale=0.5,
    ),
)
class Llama4(Llama):
    """Layers with rotary positions see no further back than their chunk begins.

    A text of one chunk sees no edge of it, and longer ones are refused.
    """

    def __init__(self, model: Any):
        # Its causal model does not say where its body is.
        super().__init__(model if hasattr(model, "layers") else model.model)

    def max_positions(self) -> int | None:
        limits = (super().max_positions(), getattr(self.config, "attention_chunk_size", None))
        return min((limit for limit in limits if limit is not None), default=None)

    def reach(self, block: Any) -> Reach:
        check_causal(self.config, "Llama 4")  # its layers with chunks keep their causal mask
        return super().reach(block)

    def feed_forward(self, block: Any) -> FeedForward | Experts:
        mixture = block.feed_forward
        if not hasattr(mixture, "experts"):
            return self.gated(mixture)
        used = self.config.num_experts_per_tok

        def read(_: Any, __: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            # The scores of all experts, which are 0 for those that a token does not use.
            weights, experts = output[0].topk(used, dim=-1)
            return experts, weights

        return Experts(
            members=StackedExperts(mixture.experts, self.activation, transposed=True),
            used=used,
            router=mixture.router,
            read=read,
            module=mixture,
            shared=self.gated(mixture.shared_expert),
            weighs_input=True,
        )
