"""The precision that a checkpoint is loaded in: float32 where it fits, unless another is asked for.

In half precision the parts of a layer add up to its vectors within a per cent at best, because the
model itself rounds; float32 is worth its memory where there is enough.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from normlens.checkpoints.devices import is_elsewhere
from normlens.decomposition.memory import GIB, free_memory
from normlens.precisions import AUTO, CHECKPOINT, HALF

#: The share of the free memory that weights may take; the rest is for what is computed with them.
_SHARE = 0.8


def dtype_to_load(
    asked: torch.dtype | str,
    config: Any,
    device: torch.device,
    name: str,
    free: int | None = None,
) -> torch.dtype | str:
    """The dtype in which transformers reads a checkpoint; its "auto" is the checkpoint's own.

    `asked` is a dtype, "checkpoint" or "auto". Quantised checkpoints stay in the precision that
    they were made for. `free` is the memory there is, by default that of `device`.
    """
    if isinstance(asked, torch.dtype):
        return asked
    if asked == CHECKPOINT or getattr(config, "quantization_config", None) is not None:
        return AUTO
    own = str(getattr(config, "dtype", None)).removeprefix("torch.")
    if own not in HALF or is_elsewhere(device):
        return torch.float32
    needed = 4 * count_parameters(config)
    free = free_memory(device) if free is None else free
    if needed <= _SHARE * free:
        return torch.float32
    warnings.warn(
        f"{name} would take {needed / GIB:.1f} GiB in float32 and {free / GIB:.1f} GiB are free on "
        f"{device}, so it stays in {own}, where completeness is about {HALF[own]:.0e} (in float32 "
        'about 1e-06); dtype="float32" loads it in float32 all the same',
        stacklevel=3,
    )
    return AUTO


def count_parameters(config: Any) -> int:
    """The parameters of a model of this configuration, with any head that it names."""
    import transformers

    name = (getattr(config, "architectures", None) or ["AutoModel"])[0]
    kind: Any = getattr(transformers, name, transformers.AutoModel)
    try:
        with torch.device("meta"):
            model = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    # Whatever a model of foreign code raises here, loading it says it better.
    except Exception:
        return 0
    return sum(parameter.numel() for parameter in model.parameters())
