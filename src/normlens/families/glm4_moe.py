"""GLM-4.5 and its kin: Llama's block, ordinary in some layers, experts in others."""

from __future__ import annotations

from normlens.families.llama import Llama, Qwen
from normlens.models.base import register
from normlens.models.tiny import EXPERTS

_GROUPS = dict(
    EXPERTS,
    first_k_dense_replace=1,
    n_routed_experts=6,
    num_local_experts=6,
    n_shared_experts=1,
    n_group=3,
    topk_group=2,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
)


@register("minimax_m2", tiny=EXPERTS)
@register("glm4_moe", tiny=dict(_GROUPS, attention_bias=True, use_qk_norm=True))
class Glm4Moe(Llama):
    pass


@register(
    "dots1",
    tiny=dict(_GROUPS, sliding_window=3, layer_types=["sliding_attention", "full_attention"]),
)
class Dots1(Qwen):
    pass


@register(
    "ernie4_5_moe",
    tiny=dict(EXPERTS, moe_k=2, moe_num_experts=5, moe_num_shared_experts=1, use_bias=True),
)
class ErnieMoe(Llama):
    pass
