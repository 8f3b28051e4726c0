"""wav2vec 2.0, HuBERT and their kin: post-LN layers, or norms first, over frames of sound."""

from dataclasses import replace
from typing import Any

from normlens.errors import UnsupportedModelError
from normlens.layers import MEAN, SEQUENCES, Head, HeadStep, Step
from normlens.models import base
from normlens.models.parts import SoundEncoder
from normlens.models.tiny import SOUND


@base.register(
    "wav2vec2", "unispeech", "unispeech-sat", tiny=dict(SOUND, do_stable_layer_norm=True)
)
@base.register("hubert", "data2vec-audio", tiny=SOUND)
class Wav2Vec2(SoundEncoder):
    layers_path = "encoder.layers"
    attention_paths = "attention", "attention.v_proj", "attention.out_proj"
    feed_forward_paths = "feed_forward.intermediate_dense", "feed_forward.output_dense"
    norms = "layer_norm", "final_layer_norm"

    @property
    def norm_first(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.config, "do_stable_layer_norm", False))

    def end(self) -> list[HeadStep]:
        if getattr(self.model, "adapter", None) is not None:
            raise UnsupportedModelError(
                "convolutions behind the last layer turn its frames into fewer (add_adapter), so "
                "nothing behind it can be traced back to frames"
            )
        return [base.layer_norm(self.model.encoder.layer_norm)] if self.norm_first else []

    def steps(self, block: Any) -> list[Step]:
        if getattr(block, "adapter_layer", None) is not None:
            raise UnsupportedModelError(
                "each of this model's layers has a second feed-forward block, an adapter behind "
                "the first (adapter_attn_dim), and no scope has a place for it"
            )
        return super().steps(block)

    def outside_scopes(self) -> str | None:
        kernel = self.config.num_conv_pos_embeddings
        return (
            f"convolutions make frames of the sound and another one, over {kernel} frames, adds "
            "their positions before layer 0; what layer 0 calls a frame holds some of its "
            "neighbours' sound"
        )

    def sequence_head(self, model: Any) -> Head | None:
        if self.config.use_weighted_layer_sum:
            return None  # it reads every layer
        head = self.classifier(SEQUENCES, MEAN, model.classifier)
        return replace(head, body=(*head.body, base.dense(model.projector)))

    def token_head(self, model: Any) -> Head | None:
        return None if self.config.use_weighted_layer_sum else super().token_head(model)
