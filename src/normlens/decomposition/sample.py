"""A few pairs recomputed in float32, as a check on the kernels.

The sum of all parts (`Stage.norms`) does not notice errors of both signs that cancel. Norms of
single pairs do. A handful of them takes some fifteen short launches, about as long as the whole
stage of a short text, so a lens asks for it in its first and last layers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from normlens.decomposition.rules import projections
from normlens.decomposition.tiles import FeedForwardJob, scope_norms, tile_by_rows

TARGETS = SOURCES = 4  # of the sample


def sampled_error(
    job: FeedForwardJob, lengths: Sequence[int], norms: Mapping[str, Tensor]
) -> Tensor:
    """``√(Σ (‖part‖ − exact)² / Σ exact²)`` over sampled pairs, of the scope where it is largest.

    The sample lies in the longest sequence of the batch: targets from its second half, which see
    the most, and sources from all of it. The number stays on the device.
    """
    index = max(range(len(lengths)), key=lambda place: lengths[place])
    n = lengths[index]
    targets = _spread(n // 2, n, TARGETS)
    sources = _spread(0, n, SOURCES)
    errors = []
    tile = tile_by_rows(job, index, targets, sources, _rows(job, index, sources))
    for scope, exact in scope_norms(job, index, targets, sources, tile):
        found = norms[scope][index, targets, sources].T  # (j, i)
        size = exact.square().sum().clamp_min(torch.finfo(exact.dtype).tiny)
        errors.append(((found - exact).square().sum() / size).sqrt())
    # NaN must not pass for a small error.
    return torch.stack(errors).max().nan_to_num(nan=float("inf"), posinf=float("inf"))


def _rows(job: FeedForwardJob, index: int, sources: slice) -> list[Tensor]:
    """``Q^k_jh = U_jh W_k`` of the sampled sources, each (j, h, m)."""
    values = torch.einsum("jhe,hed->jhd", job.factors.heads[index, sources], job.factors.basis)
    return [values @ w for w in projections(job.ff)]


def _spread(start: int, stop: int, count: int) -> slice:
    """About `count` places between `start` and `stop`, evenly spread."""
    return slice(start, stop, max(1, (stop - start) // count))
