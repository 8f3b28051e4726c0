"""The cost model's constants from measured times.

Costs are linear in the constants, and only their ratios matter. With the time of a method beside
that of the method by source on the same stage, ``t / t₀``:

    t / t₀ · cost₀ = cost without constants + Σ_k c_k ∂cost/∂c_k

Each equation is divided by its left side, so that short and long stages count alike, and solved by
least squares with c ≥ 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from scipy.optimize import nnls

from normlens.decomposition.costs.kernels import Constants, KernelCosts
from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.costs.tiles import MATRICES
from normlens.decomposition.fused.precision import Precision

#: Constants stay within this factor of the shipped ones; beyond it a measurement went wrong.
FARTHEST = 30.0


@dataclass(frozen=True)
class Measured:
    """The time of one method on a stage, as a multiple of the time by source."""

    shape: Shape
    precision: Precision
    share: float | None  # of active neurons, that were gathered; None: matrices
    relative: float


def fitted(measured: Sequence[Measured], shipped: Constants) -> Constants:
    """The constants that explain the times best."""
    start = np.array(astuple(shipped))
    rows, wanted = [], []
    for one in measured:
        costs = KernelCosts(one.shape, one.precision)
        target = one.relative * costs.by_source
        without = _cost(one, np.zeros_like(start))
        slopes = [_cost(one, unit * start) - without for unit in np.eye(len(start))]
        rows.append(np.array(slopes) / target)
        wanted.append((target - without) / target)
    factors, _ = nnls(np.array(rows), np.array(wanted))
    # A constant that no measurement depends on stays as it is.
    seen = np.abs(np.array(rows)).max(axis=0) > 0
    factors = np.where(seen, np.clip(factors, 1 / FARTHEST, FARTHEST), 1.0)
    return Constants(*map(float, start * factors))


def _cost(one: Measured, constants: np.ndarray) -> float:
    costs = KernelCosts(one.shape, one.precision, Constants(*map(float, constants)))
    return costs.matrices if one.share is None else costs.gather(one.share)


def method_name(one: Measured) -> str:
    """The method that was measured, for people."""
    return MATRICES if one.share is None else f"gather {one.share:.0%}"
