"""MPT: pre-LN with ALiBi, and no bias anywhere."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, Reach
from normlens.models import base
from normlens.models.unwrapping import check_causal


@base.register(
    "mpt",
    tiny=dict(vocab_size=64, d_model=16, n_layers=2, n_heads=4, expansion_ratio=4, max_seq_len=48),
)
class Mpt(base.Decoder):
    """`clip_qkv` limits values as well: a text in which it does so is not complete, and refused."""

    layers_path = "blocks"
    norms = "norm_1", "norm_2"
    norm_first = True
    final_norm = "norm_f"

    def max_positions(self) -> int:
        return self.config.max_seq_len  # its table of ALiBi's distances

    def reach(self, block: Any) -> Reach:
        check_causal(self.config, "MPT")
        return super().reach(block)

    def attention(self, block: Any) -> Attention:
        attention, d = block.attn, self.config.hidden_size
        value = base.columns(attention.Wqkv, 2 * d, 3 * d)
        return base.attention_of(attention, value, attention.out_proj, attention.n_heads)

    def feed_forward(self, block: Any) -> FeedForward:
        # The module of the feed-forward block itself adds the residual as well.
        return base.feed_forward_of(block.ffn.up_proj, block.ffn.down_proj, "gelu")
