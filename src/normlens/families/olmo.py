"""OLMo: Llama's block with LayerNorms without weights; from OLMo 2 on norms behind each branch."""

from typing import Any

from normlens.families.llama import MIXED, Llama
from normlens.layers import Norm
from normlens.models.base import register
from normlens.models.tiny import EXPERTS, GROUPED


@register("olmo", tiny=dict(GROUPED, attention_bias=True, clip_qkv=100.0))
class Olmo(Llama):
    """`clip_qkv` limits values as well: a text in which it does so is not complete, and refused."""

    def norm(self, module: Any) -> Norm:
        return Norm(None, None, 1e-5, True, module)  # its ε is written into its code


@register("olmo3", tiny=dict(GROUPED, attention_bias=True, sliding_window=3, layer_types=MIXED))
@register("flex_olmo", tiny=EXPERTS)  # with experts in place of the block
@register("olmo2", tiny=GROUPED)
class Olmo2(Llama):
    norms = ()
    branch_norms = "post_attention_layernorm", "post_feedforward_layernorm"


@register("exaone4", tiny=dict(GROUPED, sliding_window=3, layer_types=MIXED))
class Exaone4(Olmo2):
    def window(self, block: Any) -> int | None:
        return self.config.sliding_window if block.self_attn.is_sliding else None
