"""StableLM: Llama's block with LayerNorms; in some sizes its branches stand side by side."""

from normlens.families.llama import Llama
from normlens.models.base import register
from normlens.models.tiny import DECODER


@register(
    "stablelm",
    tiny=dict(
        DECODER,
        num_key_value_heads=2,
        use_qkv_bias=True,
        qk_layernorm=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    ),
)
class StableLm(Llama):
    rms = False

    @property
    def side_by_side(self) -> bool:  # type: ignore[override]
        return self.config.use_parallel_residual
