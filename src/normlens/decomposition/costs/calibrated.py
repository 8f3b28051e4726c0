"""What a calibration of the GPU at hand says: the cost model's constants, and shapes to avoid.

It decides which exact way the feed-forward stage takes, never what is computed. Nothing is read
here; `normlens.calibration` does that and says what is to be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from normlens.decomposition.costs.kernels import Constants


class BlockShape(NamedTuple):
    """The sizes of a feed-forward block that decide how its kernels are built."""

    d: int
    m: int
    heads: int
    gated: bool


@dataclass(frozen=True)
class Calibrated:
    """The constants of one kind of GPU, and shapes whose kernels are not exact enough there."""

    constants: Constants
    refused: frozenset[BlockShape] = frozenset()
    in_words: str = ""  # what provenance says of it


_IN_USE: dict[str, Calibrated] = {}  # by the GPU's name


def use(gpu: str, calibrated: Calibrated | None) -> None:
    """Use a calibration for all GPUs of this name; None: the shipped constants."""
    if calibrated is None:
        _IN_USE.pop(gpu, None)
    else:
        _IN_USE[gpu] = calibrated


def calibrated_for(device: torch.device) -> Calibrated | None:
    """The calibration in use for a device, if there is one."""
    if not _IN_USE or device.type != "cuda":
        return None
    return _IN_USE.get(torch.cuda.get_device_name(device))


def constants_for(device: torch.device) -> Constants | None:
    """The constants for a device; None: the shipped ones."""
    found = calibrated_for(device)
    return None if found is None else found.constants


def is_refused(device: torch.device, shape: BlockShape) -> bool:
    """Whether the kernels of this shape were not exact enough on this kind of device."""
    found = calibrated_for(device)
    return found is not None and shape in found.refused
