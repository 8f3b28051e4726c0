"""Phi-1, 1.5 and 2: attention and feed-forward side by side behind one shared norm."""

from normlens.models import base
from normlens.models.tiny import DECODER


@base.register("phi", tiny=DECODER)
class Phi(base.Decoder):
    layers_path = "layers"
    attention_paths = "self_attn", "self_attn.v_proj", "self_attn.dense"
    feed_forward_paths = "mlp.fc1", "mlp.fc2"
    norms = ("input_layernorm",)
    side_by_side = True
    final_norm = "final_layernorm"
