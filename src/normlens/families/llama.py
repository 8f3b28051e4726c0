"""Llama and the decoders that share its block: RMSNorm before, SwiGLU, grouped queries."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, Experts, FeedForward, Norm
from normlens.models.base import Decoder, attention_of, feed_forward_of, register, rms_norm
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
class Llama(Decoder):
    layers_path = "layers"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_first = True
    final_norm = "norm"

    def norm(self, module: Any) -> Norm:
        return rms_norm(module)

    def attention(self, block: Any) -> Attention:
        attention, config = block.self_attn, self.config
        return attention_of(
            attention,
            attention.v_proj,
            attention.o_proj,
            config.num_attention_heads,
            config.num_key_value_heads,
        )

    def feed_forward(self, block: Any) -> FeedForward | Experts:
        mlp = block.mlp
        return self.experts(mlp) if hasattr(mlp, "experts") else self.gated(mlp)

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
        """The block of a layer, or an expert that all tokens share."""
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
class Qwen(Llama):
    def window(self, block: Any) -> int | None:
        # Only some layers slide, and only if the configuration says so. Qwen 3's query and key
        # norms, like SmolLM 3's layers without rotary positions, differ in the weights alone.
        return self.sliding_window(block.self_attn)
