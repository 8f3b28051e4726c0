"""BART: an encoder–decoder with norms behind, biases everywhere."""

from __future__ import annotations

from typing import Any

from normlens.components import Attention, FeedForward, Norm, Step
from normlens.heads import HeadStep
from normlens.models.base import layer_norm, linear, register, sublayers
from normlens.models.two_stacks import ENCODER, TINY, TwoStacks


@register("bart", "blenderbot-small", "plbart", tiny=TINY)
class Bart(TwoStacks):
    norm_first = False

    def encoder_end(self) -> list[HeadStep]:
        return _final_norm(self.model.encoder)

    def end(self) -> list[HeadStep]:
        return _final_norm(self.model.decoder)

    def steps(self, block: Any) -> list[Step]:
        parts: list[tuple[Norm, Step]] = [
            (layer_norm(block.self_attn_layer_norm), _attention(block.self_attn))
        ]
        if hasattr(block, "encoder_attn"):
            cross = _attention(block.encoder_attn, ENCODER)
            parts.append((layer_norm(block.encoder_attn_layer_norm), cross))
        feed_forward = FeedForward(
            up=linear(block.fc1),
            down=linear(block.fc2),
            activation=self.config.activation_function,
            module=block.fc2,
        )
        parts.append((layer_norm(block.final_layer_norm), feed_forward))
        return sublayers(parts, norm_first=self.norm_first)


def _attention(module: Any, source: str | None = None) -> Attention:
    return Attention(
        value=linear(module.v_proj),
        output=linear(module.out_proj),
        heads=module.num_heads,
        groups=module.num_heads,
        weights=module,
        module=module.out_proj,
        source=source,
    )


def _final_norm(stack: Any) -> list[HeadStep]:
    """The norm behind a stack's last layer, which those with norms first have."""
    norm = getattr(stack, "layer_norm", None)
    return [] if norm is None else [layer_norm(norm)]
