"""OPT: pre-LN, but post-LN in the 350M model, which also projects its embeddings; BioGPT."""

from __future__ import annotations

from typing import Any

from normlens.layers import Attention, FeedForward, HeadStep
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

    @property
    def activation(self) -> str:
        return self.config.activation_function

    def attention(self, block: Any) -> Attention:
        return base.projected_attention(block.self_attn)

    def feed_forward(self, block: Any) -> FeedForward:
        return base.feed_forward_of(block.fc1, block.fc2, self.activation)


@base.register("biogpt", tiny=DECODER)
class BioGpt(OPT):
    layers_path = "layers"
    norm_first = True

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.layer_norm)]

    @property
    def activation(self) -> str:
        return self.config.hidden_act
