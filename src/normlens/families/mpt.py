"""MPT: pre-LN with ALiBi, and no bias anywhere."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, HeadStep, Reach, Step
from normlens.models.base import Decoder, columns, layer_norm, linear, register, sublayers
from normlens.models.unwrapping import check_causal


@register(
    "mpt",
    tiny=dict(vocab_size=64, d_model=16, n_layers=2, n_heads=4, expansion_ratio=4, max_seq_len=48),
)
class Mpt(Decoder):
    """`clip_qkv` limits values as well: a text in which it does so is not complete, and refused."""

    def blocks(self) -> list[Any]:
        return list(self.model.blocks)

    def end(self) -> list[HeadStep]:
        return [layer_norm(self.model.norm_f)]

    def max_positions(self) -> int:
        return self.config.max_seq_len  # its table of ALiBi's distances

    def reach(self, block: Any) -> Reach:
        check_causal(self.config, "MPT")
        return super().reach(block)

    def steps(self, block: Any) -> list[Step]:
        attention, ffn, d = block.attn, block.ffn, self.config.hidden_size
        attend = Attention(
            value=columns(attention.Wqkv, 2 * d, 3 * d),
            output=linear(attention.out_proj),
            heads=attention.n_heads,
            groups=attention.n_heads,
            weights=attention,
            module=attention.out_proj,
        )
        feed_forward = FeedForward(
            up=linear(ffn.up_proj),
            down=linear(ffn.down_proj),
            activation="gelu",
            module=ffn.down_proj,  # the block itself adds the residual as well
        )
        return sublayers(
            [
                (layer_norm(block.norm_1), attend),
                (layer_norm(block.norm_2), feed_forward),
            ],
            norm_first=True,
        )
