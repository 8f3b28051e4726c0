"""Models that accelerate spreads over several devices while it loads them (`device_map`)."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from normlens.checkpoints.objects import held_by
from normlens.decomposition.memory import free_memory
from normlens.errors import InputError, MissingDependencyError
from normlens.precisions import AUTO

#: A way of spreading by its name, or the device of each module by the module's path.
DeviceMap = str | dict[str, str | int | torch.device]


def check_device_map(source: object, device: str | torch.device, part: str | None) -> None:
    """Raise unless a model from `source` can be spread while it is loaded."""
    if held_by(source) is not None:
        raise InputError(
            "device_map is for models that are loaded by name; load the object with "
            "from_pretrained(…, device_map=…) and give it as it is"
        )
    if device != AUTO:
        raise InputError(
            f"give device or device_map, not both: a device_map says where all of a model lies, "
            f"and device is {str(device)!r}"
        )
    if part is not None:
        raise InputError("device_map spreads whole models; leave it out, or leave out part")
    if importlib.util.find_spec("accelerate") is None:
        raise MissingDependencyError("device_map needs accelerate; run: pip install accelerate")


def loading_options(device_map: DeviceMap | None) -> dict[str, Any]:
    """What `from_pretrained` is told of it."""
    return {} if device_map is None else {"device_map": device_map}


def free_everywhere() -> int:
    """Bytes that are free on all GPUs together, or in memory where there is none."""
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return sum(map(free_memory, gpus)) if gpus else free_memory(torch.device("cpu"))
