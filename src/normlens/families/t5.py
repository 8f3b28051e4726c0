"""T5, mT5, Flan-T5 and UMT5: RMSNorms first, no biases, relative positions inside α.

The first layer's table of relative positions serves all layers of T5, and scores are not divided by
the square root of a head's width. Both act on α alone, which is read as it is.
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from normlens.layers import Attention, FeedForward, Head, HeadStep, Norm, Step
from normlens.models import base
from normlens.models.parts import ENCODER, TwoStacks

TINY = dict(
    vocab_size=64,
    d_model=16,
    d_kv=6,  # heads need not fill the model's width
    d_ff=24,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=3,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=6,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
)


@base.register("mt5", tiny=dict(TINY, feed_forward_proj="gated-gelu"))
@base.register("t5", tiny=dict(TINY, feed_forward_proj="relu"))
class T5(TwoStacks):
    layers_path = "block"
    #: The place of α among the outputs of an attention, whose second output is the position bias.
    weights_at = 2
    final_norm = "decoder.final_layer_norm"
    rms = True

    def encoder_end(self) -> list[HeadStep]:
        return [self.norm(self.model.encoder.final_layer_norm)]

    def generating_head(self, model: Any) -> Head:
        head = super().generating_head(model)
        if not self._scales(model):
            return head
        # The vectors that are compared with words are divided by √d first; γ takes that over.
        (norm,) = head.body
        assert isinstance(norm, Norm)
        assert norm.gamma is not None
        gamma = norm.gamma.to(torch.promote_types(norm.gamma.dtype, torch.float32))
        return replace(head, body=(replace(norm, gamma=gamma * model.model_dim**-0.5),))

    def _scales(self, model: Any) -> bool:
        """Whether the model scales its last vectors: those that share the embeddings' matrix do.

        The code of mT5 never does, whatever its configuration says.
        """
        names = inspect.unwrap(type(model).forward).__code__.co_names
        shared = self.config.tie_word_embeddings
        return "model_dim" in names and getattr(self.config, "scale_decoder_outputs", shared)

    def max_positions(self) -> None:
        return None  # relative positions end nowhere

    def generation_options(self, labels: Sequence[int] | None) -> dict[str, Any]:
        # transformers makes room for as many layers as the encoder has.
        fits = len(self.decoder_blocks()) <= len(self.encoder_blocks())
        return {} if fits else {"use_cache": False}

    def steps(self, block: Any) -> list[Step]:
        first, *cross, last = block.layer
        parts: list[tuple[Norm, Step]] = [
            (self.norm(first.layer_norm), self.attend(first.SelfAttention))
        ]
        parts += [
            (self.norm(layer.layer_norm), self.attend(layer.EncDecAttention, ENCODER))
            for layer in cross
        ]
        parts.append((self.norm(last.layer_norm), self.feed_forward(last.DenseReluDense)))
        return base.sublayers(parts, norm_first=True)

    def attend(self, module: Any, source: str | None = None) -> Attention:
        return base.attention_of(
            module, module.v, module.o, module.n_heads, source=source, weights_at=self.weights_at
        )

    def feed_forward(self, block: Any) -> FeedForward:
        gated = hasattr(block, "wi_0")
        gate, up = (block.wi_0, block.wi_1) if gated else (None, block.wi)
        return base.feed_forward_of(up, block.wo, self.config.dense_act_fn, gate)


@base.register("umt5", tiny=dict(TINY, feed_forward_proj="gated-gelu"))
class UMT5(T5):
    weights_at = 1
