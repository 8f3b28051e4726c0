"""Qwen's mixtures: in some layers experts, in Qwen 2 with a shared one behind a gate of its own."""

from __future__ import annotations

from normlens.families.llama import Qwen
from normlens.models.base import register
from normlens.models.tiny import EXPERTS

#: The first layer has an ordinary block.
_UNLIKE = dict(EXPERTS, mlp_only_layers=[0])


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
class QwenMoe(Qwen):
    pass
