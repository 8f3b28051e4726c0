"""Mixtral: Mistral's block with experts in place of the feed-forward block."""

from __future__ import annotations

from normlens.families.llama import Mistral
from normlens.models.base import register
from normlens.models.tiny import EXPERTS


@register("mixtral", tiny=dict(EXPERTS, sliding_window=3))
class Mixtral(Mistral):
    pass
