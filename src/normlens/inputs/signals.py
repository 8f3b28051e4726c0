"""Pictures and sounds as a model takes them, with patches or frames as tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import IMAGES, InputError, check_installed, reason_of
from normlens.inputs.text import Encoded
from normlens.models.parts import USUAL_RATE, ImageEncoder, SignalEncoder, SoundEncoder, TwoStacks
from normlens.results.axes import LARGEST_PICTURE, PatchGrid

if TYPE_CHECKING:
    from normlens.inputs.encode import RawInput
    from normlens.lens import Lens


class PILImage(Protocol):
    """A PIL image; Pillow is optional, so its class is not named here."""

    @property
    def size(self) -> tuple[int, int]: ...

    def convert(self, mode: str) -> PILImage: ...


#: A picture: a PIL image, an array (height, width, 3), pixel values as a tensor, or a path.
Picture: TypeAlias = PILImage | NDArray[np.number] | Tensor | os.PathLike[str] | str
#: A waveform of one channel as an array, with its sampling rate beside it, or input values.
Sound: TypeAlias = NDArray[np.number] | Tensor
#: What models take that see or hear.
Signal: TypeAlias = Picture | Sound
#: What an audio model hears, (mel bins, time steps) or a batch of it.
Features: TypeAlias = Tensor | NDArray[np.floating] | list[list[float]]

_TAKES = "pass a PIL image, an array, a path, or pixel_values as a tensor"
#: How far a picture's values may leave 0 to 1 by rounding.
_ROUNDING = 0.02


def encode_signals(lens: Lens, given: RawInput) -> tuple[list[Encoded], bool]:
    """Pictures or sounds as sequences, and whether they were given as a list or a batch.

    What is no tensor goes through the model's processor; a tensor is what that would have given.
    """
    source, rate = given.source, given.sampling_rate
    sees = isinstance(lens.adapter, ImageEncoder)
    beside = ("input_ids", "attention_mask", "token_type_ids", "target", "decoder_input_ids")
    if source is None or given.gives(*beside):
        what, shown = ("pictures", "image") if sees else ("sound", "waveform, sampling_rate=…")
        raise InputError(
            f"{lens.name} reads {what}, not token ids or texts; pass lens.maps({shown})"
        )
    if sees and rate is not None:
        raise InputError(f"sampling_rate is for sound; {lens.name} reads pictures")
    is_batch = isinstance(source, Tensor) and source.dim() == (4 if sees else 2)
    many = is_batch or isinstance(source, list)
    each = list(source) if many else [source]
    if not each:
        what = "picture" if sees else "sound"
        raise InputError(f"there is no {what} in the list; give at least one")
    return [_picture(lens, one) if sees else _sound(lens, one, rate) for one in each], many


def _processed(lens: Lens, tool: Any, given: Any, **options: Any) -> Tensor:
    """The input values that a model's processor, or a part of it, makes of one signal."""
    key = cast(SignalEncoder, lens.adapter).argument
    if tool is None:
        raise InputError(
            f"{lens.name} came without an image processor or a feature extractor; pass one to "
            f"load(model, processor), or pass {key} as a tensor"
        )
    try:
        return torch.as_tensor(tool(given, return_tensors="pt", **options)[key])[0]
    # Whatever the many processors raise, it is about this signal.
    except Exception as error:
        reason = reason_of(error)
        raise InputError(f"the processor of {lens.name} refuses what it is given ({reason})") from (
            error
        )


def _finite(values: Tensor, what: str) -> Tensor:
    """The values in memory, checked."""
    values = values.detach().cpu()
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"{what} hold numbers that are not finite")
    return values


# Pictures as an image model takes them: pixel values, and the grid of their patches.


def _picture(lens: Lens, picture: Any) -> Encoded:
    """A PIL image, an array, a path or pixel values, with the patches as tokens."""
    adapter = cast(ImageEncoder, lens.adapter)
    processor = getattr(lens.processor, "image_processor", lens.processor)
    values = picture
    if not isinstance(picture, Tensor):
        values = _processed(lens, processor, opened(picture, lens.name))
    channels = adapter.config.num_channels
    if values.dim() != 3 or len(values) != channels or not values.numel():
        raise InputError(
            f"pixel_values has shape {tuple(values.shape)}; {lens.name} takes ({channels}, "
            "height, width), or a batch of them"
        )
    if not values.is_floating_point():
        raise InputError(
            "pixel_values are floating-point numbers, as the model's processor gives them; "
            "pass the bytes of a picture as an array (height, width, 3)"
        )
    values = _finite(values, "pixel_values")
    rows, columns = adapter.grid(*values.shape[-2:])
    patch_height, patch_width = adapter.patch_size
    seen = values[:, : rows * patch_height, : columns * patch_width]
    prefix = adapter.prefix()
    grid = PatchGrid(rows, columns, len(prefix), picture_of(seen, processor))
    special = [True] * len(prefix) + [False] * len(grid)
    return Encoded([], [*prefix, *grid.labels()], special, signal=values, grid=grid)


def opened(picture: Any, name: str) -> PILImage:
    """A PIL image, an array or a file as a picture in RGB, turned as its camera says."""
    check_installed(IMAGES, instead=", or pass pixel_values as a tensor")
    from PIL import Image, ImageOps

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
    if array.size == 0 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,), (4,)):
        raise InputError(
            f"an array of a picture has shape (height, width, 3), not {array.shape}; pixel_values "
            "(3, height, width) are given as a tensor"
        )
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


def picture_of(values: Tensor, processor: Any) -> NDArray[np.uint8] | None:
    """The picture (height, width, 3) behind pixel values, at most `LARGEST_PICTURE` pixels long.

    None without a processor, or where what it says of itself does not give values of a picture.
    """
    if processor is None or values.shape[0] not in (1, 3):
        return None
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


def _sound(lens: Lens, sound: Any, rate: int | None) -> Encoded:
    """A waveform of `rate` Hz, or input values, with frames, called by their time, as tokens."""
    adapter = cast(SoundEncoder, lens.adapter)
    extractor = getattr(lens.processor, "feature_extractor", lens.processor)
    asked, values = getattr(extractor, "sampling_rate", None), sound
    if not isinstance(sound, Tensor):
        if not isinstance(sound, np.ndarray) or sound.dtype.kind not in "iuf":
            raise InputError(
                f"{lens.name} hears sound, not {type(sound).__name__}; pass a waveform as an array "
                "with sampling_rate=…, or input_values as a tensor"
            )
        if sound.ndim != 1 or not sound.size:
            raise InputError(f"a waveform has one channel, shape (samples,), and not {sound.shape}")
        if extractor is not None and rate != asked:
            given = "no sampling_rate was given" if rate is None else f"this one has {rate} Hz"
            raise InputError(
                f"{lens.name} hears sound of {asked} Hz, and {given}; resample it and pass "
                f"sampling_rate={asked}"
            )
        if sound.dtype.kind in "iu":  # PCM
            sound = sound.astype(np.float64) / (np.iinfo(sound.dtype).max + 1)
        values = _processed(lens, extractor, sound, sampling_rate=rate)
    if values.dim() != 1 or not values.numel() or not values.is_floating_point():
        raise InputError(
            f"input_values has shape {tuple(values.shape)} and holds {values.dtype}; "
            f"{lens.name} takes floating-point samples (samples,), or a batch of them"
        )
    values = _finite(values, "input_values")
    frames = adapter.frames(len(values))
    if not frames:
        raise InputError(f"{len(values)} samples are too short for one frame of this model")
    tokens = [f"{k * adapter.hop / int(asked or USUAL_RATE):.2f} s" for k in range(frames)]
    return Encoded([], tokens, [False] * frames, signal=values)


def encode_features(lens: Lens, given: Any) -> tuple[list[Encoded], bool]:
    """The sounds that an encoder–decoder hears as sources, and whether they were a batch."""
    adapter = lens.adapter
    if not isinstance(adapter, TwoStacks) or not adapter.hears:
        raise InputError(f"{lens.name} reads its source; pass a text or input_ids=…")
    try:
        features = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        features = torch.empty(0)
    # Two time steps of the features make one frame, of 20 ms.
    bins, frames = adapter.config.num_mel_bins, adapter.max_source_positions() or 0
    if features.dim() not in (2, 3) or features.shape[-2:] != (bins, 2 * frames):
        raise InputError(
            f"input_features has shape {tuple(features.shape)}; {lens.name} takes ({bins} mel "
            f"bins, {2 * frames} time steps), or a batch of them; shorter sound is padded by its "
            "feature extractor"
        )
    tokens = [f"{k * 0.02:.2f}s" for k in range(frames)]
    many = features.dim() == 3
    return [
        Encoded(list(range(frames)), tokens, [False] * frames, signal=one)
        for one in (features if many else features[None])
    ], many
