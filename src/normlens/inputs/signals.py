"""Pictures and sounds as a model takes them, with patches or frames as tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import InputError, MissingDependencyError, reason_of
from normlens.inputs.text import Encoded
from normlens.models.parts import USUAL_RATE, ImageEncoder, SignalEncoder, SoundEncoder
from normlens.results.routing import LARGEST_PICTURE, PatchGrid

if TYPE_CHECKING:
    from normlens.inputs.pairs import GivenPairs
    from normlens.inputs.text import Encoded
    from normlens.lens import Lens


# Pictures as an image model takes them: pixel values, and the grid of their patches.
#
# A PIL image, an array (a picture's own values) or a path goes through the model's processor,
# which resizes, crops and normalises. A tensor is what the processor would have given.


class PILImage(Protocol):
    """A PIL image; Pillow is optional, so its class is not named here."""

    @property
    def size(self) -> tuple[int, int]: ...

    def convert(self, mode: str) -> PILImage: ...


#: A picture: a PIL image, an array (height, width, 3), pixel values as a tensor, or a path.
Picture: TypeAlias = PILImage | NDArray[np.number] | Tensor | os.PathLike[str] | str

_TAKES = "pass a PIL image, an array, a path, or pixel_values as a tensor"
#: How far a picture's values may leave 0 to 1 by rounding.
_ROUNDING = 0.02


def encode_pictures(
    adapter: ImageEncoder, given: Any, processor: Any, name: str
) -> tuple[list[Encoded], bool]:
    """The pictures as sequences of patches, and whether they were given as a list or a batch."""
    if isinstance(given, Tensor):
        values = _checked(given, adapter, name)
        many = values.dim() == 4
        each = list(values if many else values[None])
    else:
        many = isinstance(given, list)
        pictures = given if isinstance(given, list) else [given]
        each = [_values(picture, adapter, processor, name) for picture in pictures]
    if not each:
        raise InputError(f"there is no picture in the list; {_TAKES}")
    return [_encoded(adapter, one, processor) for one in each], many


def _values(picture: Any, adapter: ImageEncoder, processor: Any, name: str) -> Tensor:
    """The pixel values (channels, height, width) of one picture."""
    if isinstance(picture, Tensor):
        values = _checked(picture, adapter, name)
        if values.dim() == 4 and len(values) > 1:
            raise InputError("a list holds single pictures; pass a batch of pixel_values alone")
        return values.reshape(values.shape[-3:])
    image = opened(picture, name)
    if processor is None:
        raise InputError(
            f"{name} came without an image processor, which resizes and normalises pictures; pass "
            "one to load(model, processor), or pass pixel_values as a tensor"
        )
    processor = getattr(processor, "image_processor", processor)
    try:
        values = processor(images=image, return_tensors="pt")["pixel_values"]
    # Whatever the many processors raise, it is about this picture.
    except Exception as error:
        raise InputError(f"the processor of {name} refuses the picture ({reason_of(error)})") from (
            error
        )
    return _checked(torch.as_tensor(values), adapter, name).reshape(values.shape[-3:])


def opened(picture: Any, name: str) -> PILImage:
    """A PIL image, an array or a file as a picture in RGB, turned as its camera says."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need Pillow; run: pip install 'normlens[viz]', or pass pixel_values as a "
            "tensor"
        ) from error
    if isinstance(picture, (str, os.PathLike)):
        path = Path(picture)
        try:
            if not path.is_file():
                raise InputError(f"{name} sees pictures, and there is no file {str(path)!r}")
            with Image.open(path) as file:
                return ImageOps.exif_transpose(file).convert("RGB")
        except (OSError, Image.DecompressionBombError) as error:
            reason = reason_of(error)
            raise InputError(f"{str(path)!r} is no picture ({reason}); {_TAKES}") from error
    if isinstance(picture, Image.Image):
        return ImageOps.exif_transpose(picture).convert("RGB")
    if isinstance(picture, np.ndarray):
        return Image.fromarray(_bytes(picture)).convert("RGB")
    raise InputError(f"{name} sees pictures, not {type(picture).__name__}; {_TAKES}")


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """A picture's values from 0 to 255, as (height, width) or (height, width, 3 or 4)."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise InputError(
            f"an array of a picture has shape (height, width, 3), not {array.shape}; pixel_values "
            "(3, height, width) are given as a tensor"
        )
    if array.size == 0:
        raise InputError("the picture has no pixels")
    if array.dtype == np.uint8:
        return array
    low, high = float(array.min()), float(array.max())
    if np.issubdtype(array.dtype, np.floating) and low >= 0 and high <= 1:
        return np.round(array * 255).astype(np.uint8)
    if np.issubdtype(array.dtype, np.integer) and low >= 0 and high <= 255:
        return array.astype(np.uint8)
    raise InputError(
        f"the array holds {array.dtype} values from {low:.3g} to {high:.3g}; a picture has bytes "
        "from 0 to 255, or floats from 0 to 1"
    )


def _checked(values: Tensor, adapter: ImageEncoder, name: str) -> Tensor:
    """Pixel values (channels, height, width), or a batch of them."""
    channels = adapter.config.num_channels
    if values.dim() not in (3, 4) or values.shape[-3] != channels or not values.numel():
        raise InputError(
            f"pixel_values has shape {tuple(values.shape)}; {name} takes ({channels}, height, "
            "width), or a batch of them"
        )
    if not values.is_floating_point():
        raise InputError(
            "pixel_values are floating-point numbers, as the model's processor gives them; pass "
            "the bytes of a picture as an array (height, width, 3)"
        )
    values = values.detach().cpu()
    if not bool(torch.isfinite(values).all()):
        raise InputError("pixel_values hold numbers that are not finite")
    return values


def _encoded(adapter: ImageEncoder, values: Tensor, processor: Any) -> Encoded:
    """One picture with its patches as tokens."""
    rows, columns = adapter.grid(*values.shape[-2:])
    prefix = adapter.prefix()
    patch_height, patch_width = adapter.patch_size
    seen = values[:, : rows * patch_height, : columns * patch_width]
    grid = PatchGrid(rows, columns, len(prefix), picture_of(seen, processor))
    special = [True] * len(prefix) + [False] * len(grid)
    return Encoded([], [*prefix, *grid.labels()], special, signal=values, grid=grid)


def picture_of(values: Tensor, processor: Any) -> NDArray[np.uint8] | None:
    """The picture (height, width, 3) behind pixel values, at most `LARGEST_PICTURE` pixels long.

    None without a processor, or where what it says of itself does not give values of a picture.
    """
    if processor is None or values.shape[0] not in (1, 3):
        return None
    processor = getattr(processor, "image_processor", processor)
    x = values.double()
    if getattr(processor, "do_normalize", None):
        mean, deviation = (
            torch.as_tensor(getattr(processor, f"image_{what}"), dtype=x.dtype).reshape(-1, 1, 1)
            for what in ("mean", "std")
        )
        x = x * deviation + mean
    if getattr(processor, "do_rescale", True):
        x = x / (getattr(processor, "rescale_factor", None) or 1 / 255)
    x = x / 255
    if float(x.min()) < -_ROUNDING or float(x.max()) > 1 + _ROUNDING:
        return None
    height, width = x.shape[-2:]
    factor = LARGEST_PICTURE / max(height, width)
    if factor < 1:
        size = max(1, round(height * factor)), max(1, round(width * factor))
        x = F.interpolate(x[None], size=size, mode="bilinear", antialias=True)[0]
    pixels: NDArray[np.uint8] = (x.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


# Sounds as an audio model takes them: a waveform's values, and its frames as tokens.


#: A waveform of one channel as an array, with its sampling rate beside it, or input values.
Sound: TypeAlias = NDArray[np.number] | Tensor


def encode_sounds(
    adapter: SoundEncoder, given: Any, rate: int | None, extractor: Any, name: str
) -> tuple[list[Encoded], bool]:
    """The sounds as sequences of frames, and whether they were given as a list or a batch."""
    extractor = getattr(extractor, "feature_extractor", extractor)
    if isinstance(given, Tensor):
        values = _checked_sound(given, name)
        many = values.dim() == 2
        each = list(values if many else values[None])
    else:
        many = isinstance(given, list)
        sounds = given if isinstance(given, list) else [given]
        each = [_sound_values(sound, rate, extractor, name) for sound in sounds]
    if not each:
        raise InputError("there is no sound in the list; give at least one waveform")
    own_rate = int(getattr(extractor, "sampling_rate", None) or USUAL_RATE)
    return [_encoded_sound(adapter, one, own_rate) for one in each], many


def _sound_values(sound: Any, rate: int | None, extractor: Any, name: str) -> Tensor:
    """The input values (samples,) of one sound."""
    if isinstance(sound, Tensor):
        return _checked_sound(sound, name).reshape(-1)
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
    return _checked_sound(torch.as_tensor(found), name).reshape(-1)


def _checked_sound(values: Tensor, name: str) -> Tensor:
    if values.dim() not in (1, 2) or not values.numel() or not values.is_floating_point():
        raise InputError(
            f"input_values has shape {tuple(values.shape)} and holds {values.dtype}; {name} takes "
            "floating-point samples (samples,), or a batch of them"
        )
    values = values.detach().cpu()
    if not bool(torch.isfinite(values).all()):
        raise InputError("input_values hold numbers that are not finite")
    return values


def _encoded_sound(adapter: SoundEncoder, values: Tensor, rate: int) -> Encoded:
    """One sound with its frames, called by the time when they begin, as tokens."""
    frames = adapter.frames(len(values))
    if not frames:
        raise InputError(f"{len(values)} samples are too short for one frame of this model")
    tokens = [f"{k * adapter.hop / rate:.2f} s" for k in range(frames)]
    return Encoded([], tokens, [False] * frames, signal=values)


# What a lens is given where its model sees or hears, or does neither.


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
