"""GLM: Llama's block with a fused gate; GLM 4 adds a norm behind each branch."""

from normlens.families.llama import Llama
from normlens.models.base import register
from normlens.models.tiny import GROUPED


@register("glm", tiny=dict(GROUPED, attention_bias=True))
class Glm(Llama):
    feed_forward_paths = "mlp.gate_up_proj", "mlp.down_proj"
    fuses_gate = True


@register("glm4", tiny=dict(GROUPED, attention_bias=True))
class Glm4(Glm):
    branch_norms = "post_self_attn_layernorm", "post_mlp_layernorm"
