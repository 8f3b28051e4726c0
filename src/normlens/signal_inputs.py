"""What a lens is given where its model sees or hears, or does neither."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from normlens.errors import InputError
from normlens.models.signals import ImageEncoder, SignalEncoder, SoundEncoder
from normlens.pictures import Picture, encode_pictures
from normlens.sounds import Sound, encode_sounds

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.pair_inputs import GivenPairs
    from normlens.text import Encoded

#: What models take that see or hear.
Signal: TypeAlias = Picture | Sound


def encode_signals(lens: Lens, given: GivenPairs) -> tuple[list[Encoded], bool]:
    """Pictures or sounds as sequences, and whether they were given as a list or a batch."""
    adapter = lens.adapter
    what = "pictures" if isinstance(adapter, ImageEncoder) else "sound"
    beside = given.input_ids, given.attention_mask, given.target, given.decoder_input_ids
    if given.source is None or any(value is not None for value in beside):
        raise InputError(
            f"{lens.name} reads {what}, not token ids or texts; pass lens.maps("
            f"{'image' if what == 'pictures' else 'waveform, sampling_rate=…'})"
        )
    if isinstance(adapter, SoundEncoder):
        return encode_sounds(adapter, given.source, given.sampling_rate, lens.processor, lens.name)
    assert isinstance(adapter, ImageEncoder)
    if given.sampling_rate is not None:
        raise InputError(f"sampling_rate is for sound; {lens.name} reads pictures")
    return encode_pictures(adapter, given.source, lens.processor, lens.name)


def takes_signals(lens: Lens) -> bool:
    """Whether a lens's model sees or hears and reads no text."""
    return isinstance(lens.adapter, SignalEncoder)


def check_no_signal(lens: Lens, given: GivenPairs) -> None:
    """Raise where a model that reads texts is given a picture or a sound."""
    text = given.source
    first = text[0] if isinstance(text, list) and text else text
    is_signal = (
        isinstance(first, (torch.Tensor, os.PathLike))
        or type(first).__module__.startswith("PIL.")
        or getattr(getattr(first, "dtype", None), "kind", "") in tuple("iufb")
    )
    if is_signal or given.sampling_rate is not None:
        raise InputError(
            f"{lens.name} reads text, not {_kind(first) if is_signal else 'sound'}; pictures are "
            "for models such as vit or clip_vision_model, sound for wav2vec2 (`normlens models`)"
        )


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
