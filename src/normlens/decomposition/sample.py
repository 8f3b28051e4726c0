"""A few norms of the kernels, compared with a recomputation in float32.

Comparing the sum of all parts (`Stage.norms`) does not notice errors of both signs that cancel;
norms of single pairs do. The sample takes some fifteen short launches, about as long as the whole
stage of a short text, so a lens takes it in its first and last layers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from normlens.decomposition.feedforward_job import FeedForwardJob
from normlens.decomposition.rules import projections
from normlens.decomposition.tiles import scope_norms, tile_by_rows

TARGETS = SOURCES = 4  # of the sample


def sampled_error(
    job: FeedForwardJob, lengths: Sequence[int], norms: Mapping[str, Tensor]
) -> Tensor:
    """``√(Σ (‖part‖ − exact)² / Σ exact²)`` over sampled pairs, in the scope where it is largest.

    The sample lies in the longest sequence of the batch: targets from its second half, which see
    the most sources, and sources from all of it. The number stays on the device.
    """
    index = max(range(len(lengths)), key=lambda place: lengths[place])
    n = lengths[index]
    targets = _spread(n // 2, n, TARGETS)
    sources = _spread(0, job.sources(index, n), SOURCES)
    errors = []
    tile = tile_by_rows(job, index, targets, sources, _rows(job, index, sources))
    for scope, exact in scope_norms(job, index, targets, sources, tile):
        sampled = norms[scope][index, targets, sources].T  # (j, i)
        size = exact.square().sum().clamp_min(torch.finfo(exact.dtype).tiny)
        errors.append(((sampled - exact).square().sum() / size).sqrt())
    # NaN must not pass as a small error.
    return torch.stack(errors).max().nan_to_num(nan=float("inf"), posinf=float("inf"))


def _rows(job: FeedForwardJob, index: int, sources: slice) -> list[Tensor]:
    """``Q^k_jh = U_jh W_k`` of the sampled sources, each (j, h, m)."""
    values = torch.einsum("jhe,hed->jhd", job.factors.heads[index, sources], job.factors.basis)
    return [values @ w for w in projections(job.ff)]


def _spread(start: int, stop: int, count: int) -> slice:
    """About `count` positions between `start` and `stop`, evenly spread."""
    return slice(start, stop, max(1, (stop - start) // count))
