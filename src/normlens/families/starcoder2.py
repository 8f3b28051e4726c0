"""StarCoder 2: grouped queries and windows as in Mistral, LayerNorms, no gate."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Mistral
from normlens.layers import FeedForward, Norm
from normlens.models.base import feed_forward_of, layer_norm, register
from normlens.models.tiny import DECODER


@register("starcoder2", tiny=dict(DECODER, num_key_value_heads=2, use_bias=True, sliding_window=3))
class Starcoder2(Mistral):
    def norm(self, module: Any) -> Norm:
        return layer_norm(module)

    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return feed_forward_of(mlp.c_fc, mlp.c_proj, self.activation)
