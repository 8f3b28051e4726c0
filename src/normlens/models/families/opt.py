"""OPT: pre-LN, but post-LN in the 350M model, which also projects its embeddings."""

from __future__ import annotations

from typing import Any

from normlens.components import Attention, Branch, FeedForward, Residual, Step
from normlens.heads import HeadStep
from normlens.models.base import Decoder, layer_norm, linear, register
from normlens.models.heads import dense


@register(
    "opt",
    tiny=dict(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=24,
        max_position_embeddings=48,
        word_embed_proj_dim=16,
    ),
)
class OPT(Decoder):
    def blocks(self) -> list[Any]:
        return list(self.model.decoder.layers)

    def end(self) -> list[HeadStep]:
        decoder = self.model.decoder
        steps: list[HeadStep] = []
        if decoder.final_layer_norm is not None:
            steps.append(layer_norm(decoder.final_layer_norm))
        if decoder.project_out is not None:
            steps.append(dense(decoder.project_out))
        return steps

    def steps(self, block: Any) -> list[Step]:
        attention = block.self_attn
        attend = Attention(
            value=linear(attention.v_proj),
            output=linear(attention.out_proj),
            heads=attention.num_heads,
            groups=attention.num_heads,
            weights=attention,
            module=attention.out_proj,
        )
        feed_forward = FeedForward(
            up=linear(block.fc1),
            down=linear(block.fc2),
            activation=self.config.activation_function,
            module=block.fc2,
        )
        first, second = layer_norm(block.self_attn_layer_norm), layer_norm(block.final_layer_norm)
        if block.do_layer_norm_before:
            attention_steps: list[Step] = [Branch(), first, attend, Residual()]
            return [*attention_steps, Branch(), second, feed_forward, Residual()]
        return [
            Branch(),
            attend,
            Residual(),
            first,
            Branch(),
            feed_forward,
            Residual(),
            second,
        ]
