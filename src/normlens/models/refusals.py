"""Model types whose layers are no sums of attention and feed-forward blocks, with the reason.

What is listed here has no exact map within the grammar of a layer (`normlens.components`); its
error says why. An adapter that someone registers for such a type takes precedence.
"""

from __future__ import annotations

_STATE_SPACE = "its layers are state-space models (Mamba), which have no attention"
_SOME_STATE_SPACE = "some of its layers are state-space models (Mamba) instead of attention"
_RECURRENT = "its layers mix tokens through a recurrent state instead of attention"
_DELTA_RULE = (
    "some of its layers are linear attention with a recurrent state (a delta rule), which has no "
    "attention weights"
)
_CONVOLUTION = "some of its layers are short convolutions over tokens instead of attention"
_APPROXIMATE = "its attention is an approximation that never forms a matrix of weights"
_SPARSE = "its attention is sparse and gives its weights in bands, not as targets by sources"
_GEMMA_4 = (
    "its layers normalise the value vectors of each head and share them between layers, and a "
    "third branch multiplies by embeddings of each layer"
)
_TWO_TOWERS = (
    "it is two models, one for pictures and one for texts; pass one of them, "
    "normlens.load(model.vision_model, processor) or normlens.load(model.text_model, tokenizer)"
)

_REASONS = {
    "mamba": _STATE_SPACE,
    "mamba2": _STATE_SPACE,
    "falcon_mamba": _STATE_SPACE,
    "jamba": _SOME_STATE_SPACE,
    "bamba": _SOME_STATE_SPACE,
    "zamba": _SOME_STATE_SPACE,
    "zamba2": _SOME_STATE_SPACE,
    "nemotron_h": _SOME_STATE_SPACE,
    "granitemoehybrid": "its layers may be state-space models (Mamba) instead of attention",
    "falcon_h1": "each of its layers has a state-space model (Mamba) beside the attention",
    "recurrent_gemma": "some of its layers mix tokens through a recurrent state (RG-LRU)",
    "rwkv": _RECURRENT,
    "xlstm": _RECURRENT,
    "qwen3_next": _DELTA_RULE,
    "qwen3_5": _DELTA_RULE,
    "qwen3_5_text": _DELTA_RULE,
    "qwen3_5_moe": _DELTA_RULE,
    "qwen3_5_moe_text": _DELTA_RULE,
    "kimi_linear": _DELTA_RULE,
    "olmo_hybrid": _DELTA_RULE,
    "bailing_hybrid": _DELTA_RULE,
    "minimax": (
        "some of its layers are linear attention with a recurrent state (lightning attention), "
        "which has no attention weights"
    ),
    "lfm2": _CONVOLUTION,
    "lfm2_moe": _CONVOLUTION,
    "fnet": "its layers mix tokens with a Fourier transform instead of attention",
    "convbert": (
        "half of its heads are convolutions whose kernels depend on the text, beside the attention"
    ),
    "squeezebert": (
        "its encoder calls layer.forward, so no hook sees its layers run, and it cannot be traced "
        "as it is"
    ),
    "mobilebert": (
        "each of its layers has several feed-forward blocks, one after the other, in a bottleneck "
        "narrower than the model"
    ),
    "diffllama": (
        "its heads subtract one attention from another and are normalised before the output "
        "projection"
    ),
    "nystromformer": _APPROXIMATE,
    "yoso": _APPROXIMATE,
    "mra": _APPROXIMATE,
    "longformer": _SPARSE,
    "big_bird": _SPARSE,
    "reformer": "its layers are reversible, with attention inside hashed buckets of tokens",
    "funnel": "it pools tokens between layers, so that layers have different tokens",
    "canine": "it pools characters before its deep layers, so that layers have different tokens",
    "perceiver": "its layers attend among latent vectors, not among the tokens of the text",
    "gemma3n": (
        "its layers carry several versions of each vector side by side (AltUp) and normalise the "
        "value vectors of each head"
    ),
    "gemma4": _GEMMA_4,
    "gemma4_text": _GEMMA_4,
    "gemma4_unified": _GEMMA_4,
    "gemma4_unified_text": _GEMMA_4,
}
_REASONS |= {"clip": _TWO_TOWERS, "siglip": _TWO_TOWERS}
_REASONS["wavlm"] = (
    "its attention returns the mean of its heads' weights, and each head's weights are needed"
)
_REASONS["gemma3n_text"] = _REASONS["gemma3n"]


def refused_types() -> dict[str, str]:
    """Every such model type with its reason."""
    return dict(_REASONS)


def refusal(model_type: str) -> str | None:
    """The line that says why a model type cannot be supported; None for all others."""
    reason = _REASONS.get(model_type)
    if reason is None:
        return None
    return (
        f"model type {model_type!r} is not supported: {reason}; `normlens models` lists the types "
        "that are"
    )
