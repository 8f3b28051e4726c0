"""Llama and the decoders that share its block: RMSNorm before, SwiGLU, grouped queries."""

from typing import Any

from normlens.layers import Experts, FeedForward
from normlens.models.base import Decoder, feed_forward_of, register
from normlens.models.parts import SHARED, StackedExperts, routed
from normlens.models.tiny import GROUPED

MIXED = ["sliding_attention", "full_attention"]


@register("llama", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True))
@register("ernie4_5", tiny=dict(GROUPED, use_bias=True))
@register("helium", tiny=dict(GROUPED, attention_bias=True, mlp_bias=True))
@register("hunyuan_v1_dense", tiny=dict(GROUPED, attention_bias=True))
@register("qwen3_vl_text", tiny=dict(GROUPED, attention_bias=True))
@register(
    "seed_oss", tiny=dict(GROUPED, attention_bias=True, attention_out_bias=True, mlp_bias=True)
)
@register(
    "smollm3",
    tiny=dict(
        GROUPED,
        attention_bias=True,
        mlp_bias=True,
        no_rope_layers=[1, 0],
        use_sliding_window=True,
        sliding_window=3,
        layer_types=MIXED,
    ),
)
@register(
    "ministral",
    "cwm",
    tiny=dict(
        GROUPED,
        sliding_window=3,
        layer_types=MIXED,
        rope_parameters=dict(rope_type="default", rope_theta=1e4),
    ),
)
@register("qwen3", tiny=dict(GROUPED, attention_bias=True))
@register(
    "qwen2_vl_text",
    "qwen2_5_vl_text",
    tiny=dict(
        GROUPED, rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 0])
    ),
)
@register(
    "qwen2", tiny=dict(GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=1)
)
class Llama(Decoder):
    layers_path = "layers"
    attention_paths: tuple[str, str, str] = ("self_attn", "self_attn.v_proj", "self_attn.o_proj")
    feed_forward_paths: tuple[str, ...] = ("mlp.up_proj", "mlp.down_proj", "mlp.gate_proj")
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_first = True
    final_norm = "norm"
    rms = True

    def window(self, block: Any) -> int | None:
        # Only some layers slide, and only if the configuration says so; their masks read the width
        # there. Qwen 3's norms of queries and keys, like SmolLM 3's layers without rotary
        # positions, differ in the weights alone.
        slides = getattr(block.self_attn, "sliding_window", None) is not None
        return self.config.sliding_window if slides else None

    def feed_forward(self, block: Any) -> FeedForward | Experts:
        has_experts = hasattr(block.mlp, "experts")
        return self.experts(block.mlp) if has_experts else super().feed_forward(block)

    def experts(self, mlp: Any) -> Experts:
        """Experts in place of the block, as most families keep them; one may be shared."""
        shared = next((getattr(mlp, name) for name in SHARED if hasattr(mlp, name)), None)
        return routed(
            mlp,
            StackedExperts(mlp.experts, self.activation),
            self.config.num_experts_per_tok,
            shared=None if shared is None else self.gated(shared),
            shared_gate=getattr(mlp, "shared_expert_gate", None),
        )

    def gated(self, mlp: Any) -> FeedForward:
        """An expert that all tokens share."""
        return feed_forward_of(mlp.up_proj, mlp.down_proj, self.activation, gate=mlp.gate_proj)


@register(
    "ministral3",
    tiny=dict(
        GROUPED,
        sliding_window=3,
        rope_parameters=dict(
            rope_type="yarn",
            rope_theta=1e4,
            factor=16.0,
            llama_4_scaling_beta=0.1,
            original_max_position_embeddings=3,
        ),
    ),
)
@register("mistral", tiny=dict(GROUPED, sliding_window=3))
class Mistral(Llama):
    def window(self, block: Any) -> int | None:
        return getattr(self.config, "sliding_window", None)
