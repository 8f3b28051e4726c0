"""Encoder–decoders: two stacks of layers, and which sequence each of them reads.

The encoder reads the source. The decoder reads the target, and in each layer, by a second attention
(CROSS), the vectors that the encoder returned. A family lists the blocks of both stacks and writes
the steps of a block of either; what is said here is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from normlens.components import Reach
from normlens.errors import InputError
from normlens.heads import ANY, GENERATOR, Head, HeadStep
from normlens.models.base import Adapter, linear
from normlens.models.heads import is_generating

ENCODER, DECODER = "encoder", "decoder"

#: Sizes that most families of the kind share.
TINY = dict(
    vocab_size=64,
    d_model=16,
    encoder_layers=2,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=2,
    encoder_ffn_dim=24,
    decoder_ffn_dim=20,
    max_position_embeddings=48,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    decoder_start_token_id=2,
)


class TwoStacks(Adapter):
    """One family of encoder–decoders; its blocks run one stack after the other."""

    two_stacks = True
    causal = True  # the decoder

    def encoder_blocks(self) -> Sequence[nn.Module]:
        """The encoder's layers in the order in which the model runs them."""
        return list(self.model.encoder.layers)

    def decoder_blocks(self) -> Sequence[nn.Module]:
        """The decoder's layers in the order in which the model runs them."""
        return list(self.model.decoder.layers)

    def encoder_end(self) -> list[HeadStep]:
        """The steps between the encoder's last layer and the vectors that the decoder reads."""
        return []

    def blocks(self) -> list[nn.Module]:
        return [*self.encoder_blocks(), *self.decoder_blocks()]

    def reach(self, block: nn.Module) -> Reach:
        return Reach(ahead=0) if any(block is other for other in self.decoder_blocks()) else Reach()

    def head(self, model: nn.Module) -> Head | None:
        if any(is_generating(kind.__name__) for kind in type(model).__mro__):
            return self.generating_head(model)
        return super().head(model)

    def generating_head(self, model: Any) -> Head:
        """The head that predicts the decoder's next token; some families add a bias for each."""
        output = linear(model.get_output_embeddings())
        bias = getattr(model, "final_logits_bias", None)
        if bias is not None:
            own = bias.detach()[0]
            output = replace(output, bias=own if output.bias is None else output.bias + own)
        return Head(GENERATOR, ANY, tuple(self.end()), output=output)

    # Sequences ------------------------------------------------------------------------------------

    #: Whether the encoder reads sound (`input_features`) and not token ids.
    hears = False
    #: Whether a tokenised target begins with the token that the decoder starts with.
    target_has_start = False

    def max_source_positions(self) -> int | None:
        """The longest source that the model's positions allow; None if there is no limit."""
        return self.max_positions()

    def source_vocabulary(self) -> int | None:
        return getattr(self.config, "vocab_size", None)

    def target_vocabulary(self) -> int | None:
        """The number of the decoder's tokens, which some families count apart."""
        size = getattr(self.config, "decoder_vocab_size", None)
        return self.source_vocabulary() if size is None else size

    def start_token(self, labels: Sequence[int]) -> int:
        """The token that the decoder reads first if it is to predict `labels`."""
        for config in (self.config, getattr(self.whole, "generation_config", None)):
            start = getattr(config, "decoder_start_token_id", None)
            if start is not None:
                return int(start)
        raise InputError(
            f"the configuration of {type(self.model).__name__} names no token that its decoder "
            "starts with (decoder_start_token_id); set it, or pass decoder_input_ids=…"
        )

    def generation_options(self, labels: Sequence[int] | None) -> dict[str, Any]:
        """What `generate` has to be told, given how the tokenizer writes some target, if any."""
        return {}
