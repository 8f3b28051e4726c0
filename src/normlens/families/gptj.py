"""GPT-J and CodeGen: attention and feed-forward side by side behind one shared norm."""

from typing import Any

from normlens.layers import Linear
from normlens.models import base
from normlens.models.tiny import GPT


@base.register("gptj", tiny=dict(GPT, rotary_dim=2))
class GPTJ(base.Decoder):
    layers_path = "h"
    attention_paths: tuple[str, str, str] = ("attn", "attn.v_proj", "attn.out_proj")
    feed_forward_paths = "mlp.fc_in", "mlp.fc_out"
    activation_key = "activation_function"
    norms = ("ln_1",)
    side_by_side = True
    final_norm = "ln_f"


@base.register("codegen", tiny=dict(GPT, rotary_dim=2))
class CodeGen(GPTJ):
    attention_paths = "attn", "attn.qkv_proj", "attn.out_proj"

    def value(self, module: Any) -> Linear:
        # The projection was laid out for four devices, each with its queries, values and keys.
        return base.interleaved_values(module, 4, place=1)
