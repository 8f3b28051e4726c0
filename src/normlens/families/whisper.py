"""Whisper: BART's block with norms first; the encoder's tokens are frames of sound."""

from normlens.families.bart import Bart
from normlens.models.base import register
from normlens.models.parts import TINY


@register(
    "whisper",
    tiny=dict(
        {name: size for name, size in TINY.items() if name != "max_position_embeddings"},
        num_mel_bins=6,
        max_source_positions=9,
        max_target_positions=48,
        begin_suppress_tokens=None,
    ),
)
class Whisper(Bart):
    norm_first = True
    hears = True
    target_has_start = True

    def max_positions(self) -> int:
        return self.config.max_target_positions

    def max_source_positions(self) -> int:
        # Every recording is padded with silence to this many frames.
        return self.config.max_source_positions
