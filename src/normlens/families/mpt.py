"""MPT: pre-LN with ALiBi, and no bias anywhere."""

from __future__ import annotations

from typing import Any

from normlens.layers import HeadStep, Reach, Step
from normlens.models import base
from normlens.models.unwrapping import check_causal


@base.register(
    "mpt",
    tiny=dict(vocab_size=64, d_model=16, n_layers=2, n_heads=4, expansion_ratio=4, max_seq_len=48),
)
class Mpt(base.Decoder):
    """`clip_qkv` limits values as well: a text in which it does so is not complete, and refused."""

    def blocks(self) -> list[Any]:
        return list(self.model.blocks)

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.norm_f)]

    def max_positions(self) -> int:
        return self.config.max_seq_len  # its table of ALiBi's distances

    def reach(self, block: Any) -> Reach:
        check_causal(self.config, "MPT")
        return super().reach(block)

    def steps(self, block: Any) -> list[Step]:
        attention, ffn, d = block.attn, block.ffn, self.config.hidden_size
        attend = base.attention_of(
            attention,
            base.columns(attention.Wqkv, 2 * d, 3 * d),
            attention.out_proj,
            attention.n_heads,
        )
        # The module of the feed-forward block itself adds the residual as well.
        feed_forward = base.feed_forward_of(ffn.up_proj, ffn.down_proj, "gelu")
        return base.sublayers(
            [
                (base.layer_norm(block.norm_1), attend),
                (base.layer_norm(block.norm_2), feed_forward),
            ],
            norm_first=True,
        )
