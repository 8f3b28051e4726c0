"""Gemma: Llama's block with 1 + γ; Gemma 2 and 3 add a norm behind each branch, VaultGemma none."""

from typing import Any

from normlens.families.llama import Llama
from normlens.layers import Reach
from normlens.models.base import Adapter, register
from normlens.models.tiny import GROUPED


@register("gemma", tiny=GROUPED)
class Gemma(Llama):
    norm_offset = 1.0


@register("gemma2", tiny=dict(GROUPED, sliding_window=3, query_pre_attn_scalar=4))
class Gemma2(Gemma):
    activation_key = "hidden_activation"
    norms = "input_layernorm", "pre_feedforward_layernorm"
    branch_norms: tuple[str, ...] = ("post_attention_layernorm", "post_feedforward_layernorm")


@register("vaultgemma", tiny=dict(GROUPED, sliding_window=3, query_pre_attn_scalar=4))
class VaultGemma(Gemma2):
    branch_norms = ()


@register("gemma3_text", tiny=dict(GROUPED, sliding_window=3, query_pre_attn_scalar=4))
class Gemma3(Gemma2):
    """Embedding models built on Gemma 3 look both ways, within a window that counts the target.

    Gemma 1 and 2 have the same setting, but their masks do not read it.
    """

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return super().causal and not self.config.use_bidirectional_attention

    def reach(self, block: Any) -> Reach:
        if self.causal or not super().causal:
            return super().reach(block)
        return Adapter.reach(self, block)
