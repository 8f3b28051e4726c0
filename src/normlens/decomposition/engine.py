"""Who computes the feed-forward stage, and in which precision: decided here and nowhere else.

On CUDA the fused kernel does, where Triton is there and the layer is of a kind that it knows; in
every other case the tiles of `feedforward` do, in the precision of the weights.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from functools import cache

import torch

from normlens.decomposition.feedforward import FeedForwardJob, TileNorms, feed_forward_norms

AUTO = "auto"
#: What may be asked for. It binds the fused kernel; tiles are never less exact than their weights.
PRECISIONS = (AUTO, "float32", "tf32", "bfloat16")
#: The fastest one whose error cannot change a Spearman's ρ at three decimals (docs/performance.md).
DEFAULT_PRECISION = "float32"
OLDEST_CAPABILITY = (8, 0)  # of GPUs that multiply bfloat16


def run_feed_forward(
    job: FeedForwardJob, lengths: Sequence[int], precision: str, memory_limit: int | None
) -> tuple[TileNorms, str]:
    """The norms behind the block, and the precision of the products that they come from."""
    if not is_fused(job):
        found = feed_forward_norms(job, lengths, memory_limit)
        return found, str(job.ff.down.weight.dtype).removeprefix("torch.")
    from normlens.decomposition.fused.ways import fused_norms

    chosen = DEFAULT_PRECISION if precision == AUTO else precision
    return fused_norms(job, lengths, chosen, memory_limit), chosen


def is_fused(job: FeedForwardJob) -> bool:
    """Whether the fused kernel can do this job on the device where it lies."""
    weight = job.ff.down.weight
    if weight.device.type != "cuda" or weight.dtype != torch.float32:
        return False
    if torch.cuda.get_device_capability(weight.device) < OLDEST_CAPABILITY or not has_triton():
        return False
    from normlens.decomposition.fused.stage import tail_of

    return tail_of(job) is not None


@cache
def has_triton() -> bool:
    """Whether Triton is installed; where it is missed, that is said once."""
    if importlib.util.find_spec("triton") is not None:
        return True
    warnings.warn(
        "Triton is not installed, so the feed-forward stage runs as PyTorch tiles on this GPU, "
        "several times slower and in float32; `pip install triton` brings the fused kernel",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
