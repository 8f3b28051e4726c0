"""Arcee and Nemotron: Llama's block with squared ReLU and no gate."""

from normlens.families.llama import Llama
from normlens.models.base import register
from normlens.models.tiny import GROUPED


@register("arcee", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True))
class Arcee(Llama):
    feed_forward_paths = "mlp.up_proj", "mlp.down_proj"


@register("nemotron", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True))
class Nemotron(Arcee):
    rms = False
    norm_offset = 1.0
