"""Mixtures of experts in Llama's block, or in Mistral's or Qwen's: in all layers or in some."""

from normlens.families.llama import MIXED, Llama, Mistral
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
#: The first layer has an ordinary block.
_UNLIKE = dict(EXPERTS, mlp_only_layers=[0])


@register("minimax_m2", tiny=EXPERTS)
@register("glm4_moe", tiny=dict(_GROUPS, attention_bias=True, use_qk_norm=True))
@register("hunyuan_v1_moe", tiny=dict(EXPERTS, moe_topk=2, attention_bias=True))
@register("olmoe", tiny=dict(EXPERTS, attention_bias=True, clip_qkv=100.0))
@register(
    "ernie4_5_moe",
    tiny=dict(EXPERTS, moe_k=2, moe_num_experts=5, moe_num_shared_experts=1, use_bias=True),
)
@register("qwen3_moe", tiny=dict(_UNLIKE, attention_bias=True, norm_topk_prob=True))
@register(
    "qwen2_moe",
    tiny=dict(
        _UNLIKE,
        shared_expert_intermediate_size=20,
        norm_topk_prob=False,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=1,
    ),
)
@register("dots1", tiny=dict(_GROUPS, sliding_window=3, layer_types=MIXED))
class LlamaMoe(Llama):
    """Some layers have experts; in Qwen 2 a shared one is behind a gate of its own.

    OLMoE's `clip_qkv` limits values as well: a text in which it does so is refused.
    """


@register("mixtral", tiny=dict(EXPERTS, sliding_window=3))
class Mixtral(Mistral):
    pass


@register("phimoe", tiny=dict(EXPERTS, attention_bias=True, lm_head_bias=True, sliding_window=3))
class Phimoe(Mistral):
    rms = False
