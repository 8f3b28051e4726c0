"""Arcee and Nemotron: Llama's block with squared ReLU and no gate."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Llama
from normlens.layers import FeedForward, Norm
from normlens.models.base import feed_forward_of, layer_norm, register
from normlens.models.tiny import GROUPED


@register("arcee", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True))
class Arcee(Llama):
    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return feed_forward_of(mlp.up_proj, mlp.down_proj, self.activation)


@register("nemotron", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True))
class Nemotron(Arcee):
    def norm(self, module: Any) -> Norm:
        return layer_norm(module, offset=1.0)
