"""OPT: pre-LN, but post-LN in the 350M model, which also projects its embeddings; BioGPT."""

from normlens.layers import HeadStep
from normlens.models import base
from normlens.models.tiny import DECODER


@base.register(
    "opt",
    tiny=dict(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=24,
        max_position_embeddings=48,
        word_embed_proj_dim=16,
    ),
)
class OPT(base.Decoder):
    layers_path = "decoder.layers"
    attention_paths = "self_attn", "self_attn.v_proj", "self_attn.out_proj"
    feed_forward_paths = "fc1", "fc2"
    activation_key = "activation_function"
    norms = "self_attn_layer_norm", "final_layer_norm"

    @property
    def norm_first(self) -> bool:  # type: ignore[override]
        return self.config.do_layer_norm_before

    def end(self) -> list[HeadStep]:
        decoder = self.model.decoder
        steps: list[HeadStep] = []
        if decoder.final_layer_norm is not None:
            steps.append(base.layer_norm(decoder.final_layer_norm))
        if decoder.project_out is not None:
            steps.append(base.dense(decoder.project_out))
        return steps


@base.register("biogpt", tiny=DECODER)
class BioGpt(OPT):
    layers_path = "layers"
    activation_key = "hidden_act"
    norm_first = True

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.layer_norm)]
