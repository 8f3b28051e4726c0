"""Adapters of encoder–decoders, of mixtures of experts, and of models that see or hear."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from normlens import layers as components
from normlens.errors import InputError
from normlens.models.base import Adapter, linear
from normlens.models.reading import UnreadableModule, read_tensor, without_idle_adapters

# Encoder–decoders: two stacks of layers, and which sequence each of them reads.
#
# The encoder reads the source. The decoder reads the target, and in each layer, by a second
# attention (CROSS), the vectors that the encoder returned. A family lists the blocks of both
# stacks and writes the steps of a block of either; what is said here is the same for all of them.


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
    layers_path = "layers"  # inside each stack

    def encoder_blocks(self) -> Sequence[nn.Module]:
        """The encoder's layers in the order in which the model runs them."""
        return list(getattr(self.model.encoder, self.layers_path))

    def decoder_blocks(self) -> Sequence[nn.Module]:
        """The decoder's layers in the order in which the model runs them."""
        return list(getattr(self.model.decoder, self.layers_path))

    def encoder_end(self) -> list[components.HeadStep]:
        """The steps between the encoder's last layer and the vectors that the decoder reads."""
        return []

    def blocks(self) -> list[nn.Module]:
        return [*self.encoder_blocks(), *self.decoder_blocks()]

    def reach(self, block: nn.Module) -> components.Reach:
        return (
            components.Reach(ahead=0)
            if any(block is other for other in self.decoder_blocks())
            else components.Reach()
        )

    def generating_head(self, model: Any) -> components.Head:
        """The head that predicts the decoder's next token; some families add a bias for each."""
        output = linear(model.get_output_embeddings())
        if getattr(model, "final_logits_bias", None) is not None:
            own = model.final_logits_bias.detach()[0]
            output = replace(output, bias=own if output.bias is None else output.bias + own)
        return components.Head(
            components.GENERATOR, components.ANY, tuple(self.end()), output=output
        )

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


# Mixtures of experts as components: how transformers keeps experts, and how it calls them.
#
# Experts lie in three-dimensional parameters, the first axis of which counts experts: one that
# gives the gate and the values that it gates, and one behind them. They are called with the
# vectors of all tokens, the experts of each token, and their weights.


#: What transformers calls an expert that all tokens share.
SHARED = ("shared_expert", "shared_experts", "shared_mlp")


@dataclass(frozen=True)
class StackedExperts(Sequence[components.FeedForward]):
    """Gated experts in the parameters `gate_up_proj` and `down_proj` of one module.

    They are (expert, out, in), or (expert, in, out) if `transposed`. The gate's neurons come before
    those that it gates, or alternate with them.
    """

    module: Any
    activation: str
    transposed: bool = False
    alternating: bool = False
    limit: float | None = None

    def __len__(self) -> int:
        return len(self._read("down_proj"))

    def __getitem__(self, expert: Any) -> Any:
        m = self._read("down_proj").shape[1 if self.transposed else 2]
        gate, up = slice(0, m), slice(m, 2 * m)
        if self.alternating:
            gate, up = slice(0, None, 2), slice(1, None, 2)
        return components.FeedForward(
            gate=self._linear("gate_up_proj", expert, gate),
            up=self._linear("gate_up_proj", expert, up),
            down=self._linear("down_proj", expert),
            activation=self.activation,
            limit=self.limit,
        )

    def _linear(self, name: str, expert: int, columns: slice = slice(None)) -> components.Linear:
        weight = self._read(name)[expert]
        bias = read_tensor(without_idle_adapters(self.module), f"{name}_bias")
        matrix = weight if self.transposed else weight.T
        return components.Linear(
            matrix[:, columns], None if bias is None else bias[expert][columns]
        )

    def _read(self, name: str) -> Tensor:
        tensor = read_tensor(without_idle_adapters(self.module), name)
        if tensor is None or tensor.dim() != 3:
            raise UnreadableModule(
                self.module,
                f"has no three-dimensional parameter `{name}` of all experts",
                "load the model without quantisation, in a version of transformers from 5 on",
            )
        return tensor


def routed(
    block: Any, members: Sequence[components.FeedForward], used: int, **also: Any
) -> components.Experts:
    """The experts of a module `block`, which calls `block.experts` with their routing."""
    return components.Experts(
        members=members, used=used, router=block.experts, read=routing_of_call, module=block, **also
    )


def routing_of_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> tuple[Tensor, Tensor]:
    """Experts and weights (token, k) in a call of experts with (vectors, experts, weights)."""
    _, *given = (*args, *kwargs.values())
    experts, weights = sorted(given, key=lambda tensor: tensor.is_floating_point())
    if weights.shape[-1] != experts.shape[-1]:  # a column for every expert, used or not
        weights = weights.gather(-1, experts)
    return experts, weights


# Families that see or hear: the model itself cuts a picture into patches, a sound into frames.
#
# Patches and frames are the tokens. What an adapter adds to its blocks is how many tokens there
# are and what they are called; everything else is as for texts.


#: The sampling rate, in Hz, of models whose feature extractor is not at hand.
USUAL_RATE = 16000


class SignalEncoder(Adapter):
    """A family whose input is no text."""

    #: The argument of the model's call that takes the signal.
    argument: str

    def call_options(self, values: Tensor) -> dict[str, Any]:
        """What a call with the batch `values` must say beside it."""
        return {}


class ImageEncoder(SignalEncoder):
    """A family that reads a picture as patches, row by row."""

    argument = "pixel_values"
    #: Whether a call with a picture of another size must ask for interpolated positions.
    interpolates = False

    def prefix(self) -> list[str]:
        """The tokens before the patches."""
        return ["[CLS]"]

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return _both(self.config.patch_size)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the pictures that the model was made for, in pixels."""
        return _both(self.config.image_size)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches; what is left at the lower and right edge is not seen."""
        patch_height, patch_width = self.patch_size
        if height < patch_height or width < patch_width:
            raise InputError(
                f"the picture has {height}×{width} pixels, and one patch of this model has "
                f"{patch_height}×{patch_width}; give a larger one"
            )
        return height // patch_height, width // patch_width

    def call_options(self, values: Tensor) -> dict[str, Any]:
        other_size = tuple(values.shape[-2:]) != self.image_size
        return {"interpolate_pos_encoding": True} if self.interpolates and other_size else {}

    def image_head(self, model: Any) -> components.Head | None:
        """A head that classifies a picture."""
        return self.image_classifier(components.FIRST, model.classifier)

    def image_classifier(self, reads: str, output: nn.Module, *steps: Any) -> components.Head:
        """A head that classifies the picture from what `reads` names of its tokens."""
        head = self.classifier(components.IMAGES, reads, output, *steps)
        return replace(head, prefix=len(self.prefix()))


class SoundEncoder(SignalEncoder):
    """A family that reads a waveform as frames of equal length."""

    argument = "input_values"

    @property
    def hop(self) -> int:
        """Samples from the beginning of one frame to that of the next."""
        return math.prod(self.config.conv_stride)

    def frames(self, samples: int) -> int:
        """How many frames the model makes of so many samples."""
        for kernel, stride in zip(self.config.conv_kernel, self.config.conv_stride, strict=True):
            samples = (samples - kernel) // stride + 1 if samples >= kernel else 0
        return samples

    def ctc_head(self, model: Any) -> components.Head | None:
        """A head that gives each frame a letter, or none."""
        return components.Head(
            components.TOKENS, components.ANY, tuple(self.end()), output=linear(model.lm_head)
        )


def _both(size: Any) -> tuple[int, int]:
    """A size in pixels as height and width."""
    height, width = size if isinstance(size, Iterable) else (size, size)
    return int(height), int(width)
