"""UMT5: T5's block; every layer has its own table of relative positions."""

from __future__ import annotations

from normlens.families.t5 import T5, TINY
from normlens.models.base import register


@register("umt5", tiny=dict(TINY, feed_forward_proj="gated-gelu"))
class UMT5(T5):
    weights_at = 1
