"""Hunyuan's mixture: Llama's block with experts and a shared one."""

from __future__ import annotations

from normlens.families.llama import Llama
from normlens.models.base import register
from normlens.models.tiny import EXPERTS


@register("hunyuan_v1_moe", tiny=dict(EXPERTS, moe_topk=2, attention_bias=True))
class HunyuanMoe(Llama):
    pass
