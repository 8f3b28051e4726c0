"""GPT-2: pre-LN, fused query–key–value projection."""

from typing import Any

from normlens.layers import Linear
from normlens.models import base
from normlens.models.tiny import GPT


@base.register("gpt2", tiny=GPT)
class GPT2(base.Decoder):
    layers_path = "h"
    attention_paths: tuple[str, str, str] = ("attn", "attn.c_attn", "attn.c_proj")
    feed_forward_paths = "mlp.c_fc", "mlp.c_proj"
    activation_key = "activation_function"
    norms = "ln_1", "ln_2"
    norm_first = True
    final_norm: str | None = "ln_f"

    def value(self, module: Any) -> Linear:
        return base.last_third(module)
