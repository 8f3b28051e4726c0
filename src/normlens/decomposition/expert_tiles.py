"""Parts behind a mixture of experts, for a tile of targets and sources.

Each target has its own experts, so no rows of neurons are shared by all targets of a source. Inside
a tile the parts themselves are formed, and targets that use the same expert pass it together. For
many sources, one matrix ``M_i = Σ_e w_ie Σ_k W^e_k diag(r^ke_i) W^e_down`` is formed per target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normlens.components import FeedForward
from normlens.decomposition.costs.tiles import MATRICES
from normlens.decomposition.feedforward_job import ExpertsJob
from normlens.decomposition.rules import projections


def expert_tile(job: ExpertsJob, index: int, targets: slice, sources: slice, method: str) -> Tensor:
    """``Σ_e w_ie Σ_k ((F_i(x_j) W^e_k) ⊙ r^ke_i) W^e_down`` for one block, (j, i, d)."""
    weights = job.factors.weights[index, sources, targets]
    weights = weights * job.factors.scale[index, targets, None]
    parts = torch.bmm(weights, job.factors.values[index, sources])  # (j, i, d)
    if method == MATRICES:
        matrices = _matrices(job, index, targets)
        return torch.bmm(parts.transpose(0, 1), matrices).transpose(0, 1)
    total = torch.zeros_like(parts)
    for used, places, rows in job.block.at_targets(index, targets):
        ff = used.ff
        slopes = [slope[0, rows] for slope in used.neurons.slopes]
        neurons = _neurons(job, ff, parts[:, places] * _some(used.inside, rows), slopes)
        out = torch.mm(neurons.flatten(0, 1), ff.down.weight).view(*neurons.shape[:2], -1)
        total.index_add_(1, places, out * _some(used.outside, rows))
    return total


def _neurons(job: ExpertsJob, ff: FeedForward, parts: Tensor, slopes: list[Tensor]) -> Tensor:
    """``Σ_k (F W_k) ⊙ r^k`` of parts (j, t, d) with slopes (t, m), as (j, t, m)."""
    j, t, _ = parts.shape
    flat = parts.flatten(0, 1)
    first: Tensor | None = None
    for w, slope in zip(projections(ff), slopes, strict=True):
        name = "expert" if first is None else "expert gated"
        z = job.buffers.take(name, w, j * t, w.shape[1])
        torch.mm(flat, w, out=z)
        if first is None:
            first = z.view(j, t, -1).mul_(slope)
        else:
            first.addcmul_(z.view(j, t, -1), slope)
    assert first is not None
    return first


def _matrices(job: ExpertsJob, index: int, targets: slice) -> Tensor:
    """M_i of some targets, (i, d, d)."""
    d = job.block.d
    matrices = job.factors.scale.new_zeros(targets.stop - targets.start, d, d)
    for used, _, rows in job.block.at_targets(index, targets):
        ff, first = used.ff, index * job.block.shape[1] + targets.start
        for row in range(rows.start, rows.stop):
            place, factor = used.order[row] - first, used.weights[row]
            scaled = torch.zeros_like(ff.up.weight)
            for w, slope in zip(projections(ff), used.neurons.slopes, strict=True):
                scaled.addcmul_(w, slope[0, row] * factor)
            matrices[place].addmm_(scaled, ff.down.weight)
    return matrices


def _some(weights: Tensor | float, rows: slice) -> Tensor | float:
    """The weights (t, 1) of some of an expert's tokens."""
    return weights[rows] if isinstance(weights, Tensor) else weights
