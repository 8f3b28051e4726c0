"""Model types whose layers are no sums of attention and feed-forward blocks, with the reason.

What is listed here has no exact map within the grammar of a layer (`normlens.layers`); its
error says why. An adapter that someone registers for such a type takes precedence.
"""

from __future__ import annotations

from normlens.errors import UnsupportedModelError

#: Each reason with the model types that it holds for.
_GROUPS = {
    # Layers without attention weights.
    "its layers are state-space models (Mamba), which have no attention": (
        "mamba mamba2 falcon_mamba"
    ),
    "some of its layers are state-space models (Mamba) instead of attention": (
        "jamba bamba zamba zamba2 nemotron_h"
    ),
    "its layers may be state-space models (Mamba) instead of attention": "granitemoehybrid",
    "each of its layers has a state-space model (Mamba) beside the attention": "falcon_h1",
    "some of its layers mix tokens through a recurrent state (RG-LRU)": "recurrent_gemma",
    "its layers mix tokens through a recurrent state instead of attention": "rwkv xlstm",
    "some of its layers are linear attention with a recurrent state (a delta rule), which has no "
    "attention weights": (
        "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text qwen4_exp qwen4_exp_text "
        "kimi_linear olmo_hybrid bailing_hybrid glm5_next_text"
    ),
    "some of its layers are linear attention with a recurrent state (lightning attention), which "
    "has no attention weights": "minimax",
    "some of its layers are short convolutions over tokens instead of attention": "lfm2 lfm2_moe",
    "its layers mix tokens with a Fourier transform instead of attention": "fnet",
    "it is a network of convolutions (or of pooling), without attention": (
        "align_vision_model bit convnext convnextv2 dac dinov3_convnext "
        "efficientnet encodec fastspeech2_conformer_hifigan "
        "focalnet hgnet_v2 mobilenet_v1 mobilenet_v2 poolformer "
        "pp_lcnet pp_lcnet_v3 pp_lcnet_v4 qwen2_5_omni_bigvgan regnet resnet rt_detr_resnet "
        "speecht5_hifigan superpoint textnet univnet uvdoc uvdoc_backbone "
        "vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder "
        "vibevoice_acoustic_tokenizer_encoder"
    ),
    "it turns images into codes by a network of convolutions": (
        "chameleon_vqgan emu3_vqgan flava_image_codebook janus_vqgan"
    ),
    # Attention beside something else that mixes tokens.
    "half of its heads are convolutions whose kernels depend on the text, beside the attention": (
        "convbert"
    ),
    "each of its layers has a convolution over frames beside the attention (a Conformer)": (
        "fastspeech2_conformer gemma3n_audio gemma4_audio granite_speech5_encoder "
        "granite_speech_encoder granite_speech_plus_encoder lasr_encoder "
        "nemotron_asr_streaming_encoder parakeet_encoder phi4_multimodal_audio seamless_m4t "
        "seamless_m4t_v2 wav2vec2-bert wav2vec2-conformer"
    ),
    "each of its layers has short convolutions over tokens beside the attention": "inkling_text",
    # Attention of another form.
    "its heads subtract one attention from another and are normalised before the output "
    "projection": "diffllama",
    "its attention normalises what the heads read before the output projection": "bitnet",
    "its attention returns the mean of its heads' weights, and each head's weights are needed": (
        "wavlm"
    ),
    "its attention sends each token to other heads (a mixture of attention experts)": "jetmoe",
    "its attention is an approximation that never forms a matrix of weights": (
        "nystromformer yoso mra"
    ),
    "its attention is sparse and gives its weights in bands, not as targets by sources": (
        "longformer big_bird bigbird_pegasus led longt5 pegasus_x"
    ),
    "its layers attend to blocks of tokens compressed into one, and carry several versions of each "
    "vector side by side (hyper-connections)": "deepseek_v4",
    "its layers carry several versions of each vector side by side (hyper-connections)": "hy_v4",
    "its attention is inside shifted windows and gives its weights by window, not as targets by "
    "sources": "swin2sr",
    "its layers are reversible, with attention inside hashed buckets of tokens": "reformer",
    # Tokens that are not the same in every layer.
    "it pools tokens between layers, so that layers have different tokens": (
        "funnel blt groupvit_vision_model"
    ),
    "it pools characters before its deep layers, so that layers have different tokens": "canine",
    "it merges patches between its stages, so that layers have different tokens": (
        "clap_audio_model cvt dinat donut-swin florence_vision glpn hiera levit maskformer-swin "
        "mobilevit mobilevitv2 pvt pvt_v2 sam2_hiera_det_model segformer swiftformer swin swinv2"
    ),
    "its layers attend among latent vectors, not among the tokens of the text": "perceiver",
    "its layers attend among learned queries, which are no tokens of the input": (
        "blip_2_qformer idefics2_perceiver idefics_perciever instructblip_qformer "
        "instructblipvideo_qformer"
    ),
    "it detects objects with learned queries, which are no tokens of the input": (
        "conditional_detr d_fine dab-detr deformable_detr deimv2 detr grounding-dino lw_detr "
        "mm-grounding-dino omdet-turbo pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 rf_detr "
        "rt_detr rt_detr_v2 table-transformer"
    ),
    "it segments images with learned queries or prompts, which are no tokens of the input": (
        "edgetam edgetam_mask_decoder edgetam_prompt_encoder edgetam_video "
        "edgetam_video_mask_decoder edgetam_video_prompt_encoder mask2former maskformer oneformer "
        "sam sam2 sam2_mask_decoder sam2_prompt_encoder sam2_video sam2_video_mask_decoder "
        "sam2_video_prompt_encoder sam3 sam3_detr_decoder sam3_detr_encoder sam3_geometry_encoder "
        "sam3_lite_text sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder "
        "sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder sam3_mask_decoder "
        "sam3_tracker sam3_tracker_mask_decoder sam3_tracker_prompt_encoder sam3_tracker_video "
        "sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder sam3_video sam_hq "
        "sam_hq_mask_decoder sam_hq_prompt_encoder sam_mask_decoder sam_prompt_encoder"
    ),
    "it reads a time series, whose numbers are no tokens": (
        "autoformer informer patchtsmixer patchtst time_series_transformer timesfm timesfm2_5"
    ),
    # Layers that cannot be traced, or have other parts.
    "its layers are no modules (attentions, norms and feed-forward blocks are in lists of their "
    "own), so no hook sees a layer run": "flaubert xlm",
    "its modules return a scale of quantisation beside each vector and can compute with "
    "integers": "ibert",
    "each of its layers learns an activation of its own (xIELU)": "apertus",
    "its layers carry several versions of each vector side by side (AltUp) and normalise the value "
    "vectors of each head": "gemma3n gemma3n_text",
    "its layers normalise the value vectors of each head and share them between layers, and a "
    "third branch multiplies by embeddings of each layer": (
        "gemma4 gemma4_text gemma4_unified gemma4_unified_text"
    ),
}

#: Every such model type with its reason.
REASONS = {name: reason for reason, names in _GROUPS.items() for name in names.split()}


class UnknownModelType(UnsupportedModelError):
    """Nobody has written an adapter yet; the message says how."""


def unknown(model_type: str, *, two_stacks: bool) -> UnknownModelType:
    """The error about a model type that nobody has written an adapter for."""
    kind = "is an encoder–decoder and" if two_stacks else "is"
    base = "normlens.models.parts.TwoStacks" if two_stacks else "normlens.Adapter"
    return UnknownModelType(
        f"model type {model_type!r} {kind} not supported; `normlens models` lists the types that "
        f"are. To add it, subclass {base} and decorate it with "
        f'@normlens.register("{model_type}") (`normlens help adapters` has an example)'
    )


def refusal(model_type: str) -> str | None:
    """The line that says why a model type cannot be supported; None for all others."""
    reason = REASONS.get(model_type)
    if reason is None:
        return None
    return (
        f"model type {model_type!r} is not supported: {reason}; `normlens models` lists the types "
        "that are"
    )
