"""Arcee: Llama's block with squared ReLU and no gate."""

from __future__ import annotations

from typing import Any

from normlens.families.llama import Llama
from normlens.layers import FeedForward
from normlens.models.base import linear, register
from normlens.models.tiny import GROUPED


@register("arcee", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True))
class Arcee(Llama):
    def feed_forward(self, block: Any) -> FeedForward:
        mlp = block.mlp
        return FeedForward(
            up=linear(mlp.up_proj),
            down=linear(mlp.down_proj),
            activation=self.activation,
            module=mlp.down_proj,
        )
