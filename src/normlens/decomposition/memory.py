"""Memory limits and memory of devices."""

from __future__ import annotations

import os

import torch

GIB = 1 << 30
#: The limit of the feed-forward stage: larger tiles are not faster. It is the same on every
#: machine, because the sizes of tiles decide the last digits.
DEFAULT_LIMIT = GIB // 4
DEFAULT_PREPARED = GIB // 2  # of products that a prepared lens keeps


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
    try:  # half of what macOS says is there
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 4 * GIB


def device_memory(device: torch.device) -> int:
    """Total memory of a device in bytes; 4 GiB where it does not tell."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return 4 * GIB
