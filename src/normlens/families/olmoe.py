"""OLMoE: Llama's block with experts whose weights need not sum to 1."""

from __future__ import annotations

from normlens.families.llama import Llama
from normlens.models.base import register
from normlens.models.tiny import EXPERTS


@register("olmoe", tiny=dict(EXPERTS, attention_bias=True, clip_qkv=100.0))
class Olmoe(Llama):
    """`clip_qkv` limits values as well: a text in which it does so is not complete, and refused."""
