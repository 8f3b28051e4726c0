"""StarCoder 2: grouped queries and windows as in Mistral, LayerNorms, no gate."""

from normlens.families.llama import Mistral
from normlens.models.base import register
from normlens.models.tiny import DECODER


@register("starcoder2", tiny=dict(DECODER, num_key_value_heads=2, use_bias=True, sliding_window=3))
class Starcoder2(Mistral):
    feed_forward_paths = "mlp.c_fc", "mlp.c_proj"
    rms = False
