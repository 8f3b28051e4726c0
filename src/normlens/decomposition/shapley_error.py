"""The standard error of each norm of a sampled Shapley map.

A part is a mean over S orders, ``v = Σ_s v_s / S``. To first order its norm changes with v's
component along v alone (delta method), so

    SE(‖v‖) = sd_s(v_s · v/‖v‖) / √S

which is less than the spread ``√(E‖v_s − v‖² / S)`` of the vector. Steps behind the block are
affine in the part, so ``v/‖v‖`` is carried back through them and through W_down once; then each
order costs a scalar product of hidden vectors.

This is the spread of the norm from seed to seed. The norm of a mean over few orders is also biased
upwards, by about the squared spread across v divided by 2‖v‖; more samples reduce both.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from normlens.decomposition.feedforward_job import AddBypass, FeedForwardJob
from normlens.decomposition.norm import FrozenNorm


class NormSpread:
    """The spread over orders of the norms of a block of targets, added up order by order."""

    def __init__(
        self, job: FeedForwardJob, index: int, targets: slice, hidden: Tensor, parts: Tensor
    ):
        """`hidden` (j, i, m) are means over all orders, and `parts` (j, i, d) those × W_down."""
        down = job.ff.down.weight
        self._gradients = {
            scope: gradient @ down.T for scope, gradient in _gradients(job, index, targets, parts)
        }
        self._means = {
            scope: torch.linalg.vecdot(gradient, hidden)
            for scope, gradient in self._gradients.items()
        }
        self._squares = {scope: torch.zeros_like(mean) for scope, mean in self._means.items()}

    def add(self, hidden: Tensor) -> None:
        """Add the contributions (j, i, m) of one order."""
        for scope, gradient in self._gradients.items():
            deviation = torch.linalg.vecdot(gradient, hidden) - self._means[scope]
            self._squares[scope] += deviation.square_()

    def standard_error(self, samples: int) -> Iterator[tuple[str, Tensor]]:
        """Each scope's standard errors (i, j) after so many orders."""
        for scope, squares in self._squares.items():
            yield scope, (squares / (samples * (samples - 1))).sqrt().transpose(0, 1)


def _gradients(
    job: FeedForwardJob, index: int, targets: slice, parts: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """``∂‖F‖/∂part`` (j, i, d) of each scope's norm, for the part just behind the block."""
    sources = slice(0, parts.shape[0])
    v = parts.clone()
    yield job.scope, _direction(v)
    norms: list[FrozenNorm] = []
    for step in job.tail:
        if isinstance(step, AddBypass):
            _add_bypass(v, step, index, targets, sources, job.factors.source is None)
        else:
            v = step.step.stretch(v) * step.step.inverse_deviation[index, targets, None]
            norms.append(step.step)
        gradient = _direction(v)
        for passed in reversed(norms):
            gradient = passed.stretch_adjoint(gradient)
            gradient *= passed.inverse_deviation[index, targets, None]
        yield step.scope, gradient


def _add_bypass(
    v: Tensor, step: AddBypass, index: int, targets: slice, sources: slice, are_targets: bool
) -> None:
    if step.factors is not None:
        weights = step.factors.weights[index, sources, targets]
        weights = weights * step.factors.scale[index, targets, None]
        v.baddbmm_(weights, step.factors.values[index, sources])
    if are_targets:  # and not the tokens of another sequence
        rows = torch.arange(targets.start, targets.stop)
        v[rows, rows - targets.start] += step.own[index, targets]


def _direction(v: Tensor) -> Tensor:
    """``v/‖v‖``; 0 for a part that is 0."""
    size = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v / size.where(size > 0, torch.ones_like(size))
