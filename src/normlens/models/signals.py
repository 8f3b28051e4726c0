"""Families that see or hear: the model itself cuts a picture into patches, a sound into frames.

Patches and frames are the tokens. What an adapter adds to its blocks is how many tokens there are
and what they are called; everything else is as for texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from normlens.errors import InputError
from normlens.heads import ANY, FIRST, IMAGES, TOKENS, Head
from normlens.models.base import Adapter, linear
from normlens.models.heads import class_names

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

    def image_head(self, model: nn.Module) -> Head | None:
        """A head that classifies a picture."""
        whole: Any = model
        return self.image_classifier(FIRST, whole.classifier)

    def image_classifier(self, reads: str, output: nn.Module, *steps: Any) -> Head:
        """A head that classifies the picture from what `reads` names of its tokens."""
        head = self.classifier(IMAGES, reads, output, *steps)
        # CLIP's configuration of both towers names the classes, not that of its vision tower.
        labels = class_names(self.whole.config)
        return replace(head, labels=labels, prefix=len(self.prefix()))


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

    def ctc_head(self, model: nn.Module) -> Head | None:
        """A head that gives each frame a letter, or none."""
        whole: Any = model
        return Head(TOKENS, ANY, tuple(self.end()), output=linear(whole.lm_head))


def _both(size: Any) -> tuple[int, int]:
    """A size in pixels as height and width."""
    height, width = size if isinstance(size, Iterable) else (size, size)
    return int(height), int(width)
