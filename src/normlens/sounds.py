"""Sounds as an audio model takes them: a waveform's values, and its frames as tokens."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import InputError, reason_of
from normlens.models.signals import USUAL_RATE, SoundEncoder
from normlens.text import Encoded

#: A waveform of one channel as an array, with its sampling rate beside it, or input values.
Sound: TypeAlias = NDArray[np.number] | Tensor


def encode_sounds(
    adapter: SoundEncoder, given: Any, rate: int | None, extractor: Any, name: str
) -> tuple[list[Encoded], bool]:
    """The sounds as sequences of frames, and whether they were given as a list or a batch."""
    extractor = getattr(extractor, "feature_extractor", extractor)
    if isinstance(given, Tensor):
        values = _checked(given, name)
        many = values.dim() == 2
        each = list(values if many else values[None])
    else:
        many = isinstance(given, list)
        sounds = given if isinstance(given, list) else [given]
        each = [_values(sound, rate, extractor, name) for sound in sounds]
    if not each:
        raise InputError("there is no sound in the list; give at least one waveform")
    own_rate = int(getattr(extractor, "sampling_rate", None) or USUAL_RATE)
    return [_encoded(adapter, one, own_rate) for one in each], many


def _values(sound: Any, rate: int | None, extractor: Any, name: str) -> Tensor:
    """The input values (samples,) of one sound."""
    if isinstance(sound, Tensor):
        return _checked(sound, name).reshape(-1)
    if not isinstance(sound, np.ndarray) or sound.dtype.kind not in "iuf":
        raise InputError(
            f"{name} hears sound, not {type(sound).__name__}; pass a waveform as an array with "
            "sampling_rate=…, or input_values as a tensor"
        )
    if sound.ndim != 1 or not sound.size:
        raise InputError(f"a waveform has one channel, shape (samples,), and not {sound.shape}")
    if extractor is None:
        raise InputError(
            f"{name} came without a feature extractor, which normalises sound; pass one to "
            "load(model, extractor), or pass input_values as a tensor"
        )
    if rate != extractor.sampling_rate:
        was = "no sampling_rate was given" if rate is None else f"this one has {rate} Hz"
        raise InputError(
            f"{name} hears sound of {extractor.sampling_rate} Hz, and {was}; resample it and pass "
            f"sampling_rate={extractor.sampling_rate}"
        )
    if sound.dtype.kind in "iu":  # PCM
        sound = sound.astype(np.float64) / (np.iinfo(sound.dtype).max + 1)
    try:
        found = extractor(sound, sampling_rate=rate, return_tensors="pt")["input_values"]
    # Whatever the many extractors raise, it is about this sound.
    except Exception as error:
        raise InputError(f"the feature extractor of {name} fails ({reason_of(error)})") from error
    return _checked(torch.as_tensor(found), name).reshape(-1)


def _checked(values: Tensor, name: str) -> Tensor:
    if values.dim() not in (1, 2) or not values.numel() or not values.is_floating_point():
        raise InputError(
            f"input_values has shape {tuple(values.shape)} and holds {values.dtype}; {name} takes "
            "floating-point samples (samples,), or a batch of them"
        )
    values = values.detach().cpu()
    if not bool(torch.isfinite(values).all()):
        raise InputError("input_values hold numbers that are not finite")
    return values


def _encoded(adapter: SoundEncoder, values: Tensor, rate: int) -> Encoded:
    """One sound with its frames, called by the time when they begin, as tokens."""
    frames = adapter.frames(len(values))
    if not frames:
        raise InputError(f"{len(values)} samples are too short for one frame of this model")
    tokens = [f"{k * adapter.hop / rate:.2f} s" for k in range(frames)]
    return Encoded([], tokens, [False] * frames, signal=values)
