"""OPT: pre-LN, but post-LN in the 350M model, which also projects its embeddings; BioGPT."""

from __future__ import annotations

from typing import Any

from normlens.layers import HeadStep, Step
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
    def blocks(self) -> list[Any]:
        return list(self.model.decoder.layers)

    def end(self) -> list[HeadStep]:
        decoder = self.model.decoder
        steps: list[HeadStep] = []
        if decoder.final_layer_norm is not None:
            steps.append(base.layer_norm(decoder.final_layer_norm))
        if decoder.project_out is not None:
            steps.append(base.dense(decoder.project_out))
        return steps

    def norm_first(self, block: Any) -> bool:
        return block.do_layer_norm_before

    @property
    def activation(self) -> str:
        return self.config.activation_function

    def steps(self, block: Any) -> list[Step]:
        attend = base.projected_attention(block.self_attn)
        feed_forward = base.feed_forward_of(block.fc1, block.fc2, self.activation)
        return base.sublayers(
            [
                (base.layer_norm(block.self_attn_layer_norm), attend),
                (base.layer_norm(block.final_layer_norm), feed_forward),
            ],
            norm_first=self.norm_first(block),
        )


@base.register("biogpt", tiny=DECODER)
class BioGpt(OPT):
    def blocks(self) -> list[Any]:
        return list(self.model.layers)

    def end(self) -> list[HeadStep]:
        return [base.layer_norm(self.model.layer_norm)]

    def norm_first(self, block: Any) -> bool:
        return True

    @property
    def activation(self) -> str:
        return self.config.hidden_act
