"""Memory limits, memory of devices, and errors that mean too little of it."""

from __future__ import annotations

import re

import torch

from normlens.errors import InputError

GIB = 1 << 30
#: The limit of the feed-forward stage: larger tiles are not faster. It is the same on every
#: machine, because the sizes of tiles decide the last digits.
DEFAULT_LIMIT = GIB // 4
DEFAULT_PREPARED = GIB // 2  # of products that a prepared lens keeps
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation failed, on any device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text


def parse_bytes(value: int | float | str | None) -> int | None:
    """A memory limit as bytes: a number, or a string such as "512MB" or "1.5 GiB"."""
    if value is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)i?b?\s*", str(value).lower())
    try:
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise InputError(f"memory limit {value!r} is not a size; write for example '512MB' or 2e9")
    return size


def free_memory(device: torch.device) -> int:
    """Bytes free on `device`; for a CPU, what Linux calls available memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 4 * GIB


def device_memory(device: torch.device) -> int:
    """Total memory of a device in bytes; 4 GiB where it does not tell."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return 4 * GIB
