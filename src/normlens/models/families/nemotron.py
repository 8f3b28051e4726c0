"""Nemotron: LayerNorms that multiply by 1 + γ, squared ReLU, no gate."""

from __future__ import annotations

from typing import Any

from normlens.components import FeedForward, Norm
from normlens.models.base import layer_norm, linear, register
from normlens.models.families.llama import Llama
from normlens.models.tiny import GROUPED


@register("nemotron", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True))
class Nemotron(Llama):
    def norm(self, module: Any) -> Norm:
        return layer_norm(module, offset=1.0)

    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return FeedForward(
            up=linear(mlp.up_proj),
            down=linear(mlp.down_proj),
            activation=self.activation,
            module=mlp.down_proj,
        )
