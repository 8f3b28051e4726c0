"""BART: an encoder–decoder with norms behind, biases everywhere."""

from __future__ import annotations

from typing import Any

from normlens.layers import FeedForward, HeadStep, Norm, Step
from normlens.models.base import layer_norm, linear, projected_attention, register, sublayers
from normlens.models.parts import ENCODER, TINY, TwoStacks


@register("bart", "blenderbot-small", "plbart", tiny=TINY)
class Bart(TwoStacks):
    norm_first = False

    def encoder_end(self) -> list[HeadStep]:
        return _final_norm(self.model.encoder)

    def end(self) -> list[HeadStep]:
        return _final_norm(self.model.decoder)

    def steps(self, block: Any) -> list[Step]:
        parts: list[tuple[Norm, Step]] = [
            (layer_norm(block.self_attn_layer_norm), projected_attention(block.self_attn))
        ]
        if hasattr(block, "encoder_attn"):
            cross = projected_attention(block.encoder_attn, ENCODER)
            parts.append((layer_norm(block.encoder_attn_layer_norm), cross))
        feed_forward = FeedForward(
            up=linear(block.fc1),
            down=linear(block.fc2),
            activation=self.config.activation_function,
            module=block.fc2,
        )
        parts.append((layer_norm(block.final_layer_norm), feed_forward))
        return sublayers(parts, norm_first=self.norm_first)


def _final_norm(stack: Any) -> list[HeadStep]:
    """The norm behind a stack's last layer, which those with norms first have."""
    norm = getattr(stack, "layer_norm", None)
    return [] if norm is None else [layer_norm(norm)]
