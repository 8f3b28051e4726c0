"""DeepSeek and GLM-4.7-Flash: values from a compressed vector, ordinary blocks, then experts.

What a routed token is multiplied by holds the routed scaling factor already.
"""

from typing import Any

from normlens.families.llama import Llama
from normlens.layers import Attention, Latent
from normlens.models.base import attention_of, columns, head_columns, register, rms_norm
from normlens.models.tiny import EXPERTS

_LATENT = dict(
    EXPERTS,
    n_routed_experts=6,
    num_local_experts=6,
    num_experts=6,
    num_key_value_heads=4,
    first_k_dense_replace=1,
    n_shared_experts=2,
    n_group=3,
    topk_group=2,
    routed_scaling_factor=2.5,
    kv_lora_rank=6,
    q_lora_rank=5,
    qk_rope_head_dim=4,
    qk_nope_head_dim=2,
    v_head_dim=5,
    head_dim=4,
    attention_bias=True,
)


@register("glm4_moe_lite", tiny=dict(_LATENT, norm_topk_prob=False))
@register("deepseek_v3", tiny=dict(_LATENT, norm_topk_prob=True))
@register("deepseek_v2", tiny=dict(_LATENT, topk_method="group_limited_greedy"))
class DeepSeek(Llama):
    def attention(self, block: Any) -> Attention:
        attention, heads = block.self_attn, self.config.num_attention_heads
        # kv_a gives the compressed vector and a rotary key, kv_b each head's key and value.
        down = columns(attention.kv_a_proj_with_mqa, 0, attention.kv_lora_rank)
        return attention_of(
            attention,
            head_columns(attention.kv_b_proj, heads, attention.qk_nope_head_dim),
            attention.o_proj,
            heads,
            latent=Latent(down, rms_norm(attention.kv_a_layernorm)),
        )
