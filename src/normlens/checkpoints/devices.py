"""Devices and dtypes by their names."""

from __future__ import annotations

import torch

from normlens.errors import InputError, reason_of, valid_choice
from normlens.precisions import AUTO, CHECKPOINT, DTYPES


def pick_device(device: str | torch.device) -> torch.device:
    """The device of this name, which must be here; "auto" is the fastest that is."""
    if device == AUTO:
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    place = _named_device(device)
    try:
        # A device without memory, such as "meta", is no place for a model either.
        torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device {str(device)!r} is not available here ({reason_of(error)}); "
            "use 'auto' or 'cpu'"
        ) from error
    return place


def device_anywhere(device: str) -> torch.device:
    """The same, or a GPU that another machine has, where this one has none."""
    if device == AUTO:
        return pick_device(device)
    place = _named_device(device)
    return place if is_elsewhere(place) else pick_device(place)


def is_elsewhere(device: torch.device) -> bool:
    """Whether a device is of a kind that other machines have and this one has not."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return not here.get(device.type, True)


def _named_device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise InputError(
            f"there is no device {str(device)!r}; use 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps'"
        ) from error


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype | str:
    """The dtype of this name, or "auto" or "checkpoint" as they are (`normlens.fitting`)."""
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    name = valid_choice(dtype, (AUTO, CHECKPOINT, *DTYPES), "dtype")
    return name if name in (AUTO, CHECKPOINT) else getattr(torch, name)
