"""MPT: pre-LN with ALiBi, and no bias anywhere."""

from typing import Any

from normlens.layers import Linear, Reach
from normlens.models import base
from normlens.models.unwrapping import check_causal


@base.register(
    "mpt",
    tiny=dict(vocab_size=64, d_model=16, n_layers=2, n_heads=4, expansion_ratio=4, max_seq_len=48),
)
class Mpt(base.Decoder):
    """`clip_qkv` limits values as well: a text in which it does so is not complete, and refused."""

    layers_path = "blocks"
    attention_paths = "attn", "attn.Wqkv", "attn.out_proj"
    # The module of the feed-forward block itself adds the residual as well.
    feed_forward_paths = "ffn.up_proj", "ffn.down_proj"
    activation = "gelu"
    norms = "norm_1", "norm_2"
    norm_first = True
    final_norm = "norm_f"

    def max_positions(self) -> int:
        return self.config.max_seq_len  # its table of ALiBi's distances

    def reach(self, block: Any) -> Reach:
        check_causal(self.config, "MPT")
        return super().reach(block)

    def value(self, module: Any) -> Linear:
        return base.last_third(module)
