"""Activations with their integrated-gradients slope in closed form.

For an elementwise ``g`` and the straight path from 0, integrated gradients has the exact value

    r(z) = ∫₀¹ g′(αz) dα = (g(z) − g(0)) / z

and every activation below states that ratio in a form that needs no division by z.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.errors import UnsupportedModelError

# Gauss–Legendre on [0, 1]: 1e-12 for a sigmoid's ratio up to |z| = 40.
NODES = 40


@dataclass(frozen=True)
class Activation:
    """An activation ``g``, its slope ``r(z) = (g(z) − g(0)) / z`` and ``g(0)``."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    at_zero: float = 0.0
    #: beyond this |z| the activation is, to full precision, a line through 0 on each side …
    linear_beyond: float | None = 40.0
    #: … or beyond this |z| a constant
    constant_beyond: float | None = None
    #: it has a kink at 0, across which no quadrature may go
    kinked: bool = False
    #: what a kernel may compute its slope as: a logistic function of z, or of tanh GELU's argument
    logistic: str | None = None

    def derivative(self, z: Tensor) -> Tensor:
        """``g′(z)``, elementwise."""
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            return torch.autograd.grad(self.value(leaf).sum(), leaf)[0]

    def mean_slope(self, z: Tensor) -> Tensor:
        """``J(z) = ∫₀¹ α r(αz) dα``, which gated blocks need, by Gauss–Legendre.

        ``J(z) = ∫₀^z (g(t) − g(0)) dt / z²``, so beyond the bound T where g is a line or a constant
        ``J(z) = s² J(±T) + r(z) (1 − s²)/2``, or ``… + r(z) (1 − s)``, with ``s = T/|z|``, and the
        quadrature is only needed for ``|z| ≤ T``.
        """
        bound = self.linear_beyond or self.constant_beyond or math.inf
        # The rest is for the few that lie beyond; NaN does not lie inside.
        within = z.numel() == 0 or bool(z.abs().amax() <= bound)
        inside = z if within else z.clamp(-bound, bound)
        if z.dtype == torch.float32 and not self.kinked and bound < math.inf:
            integral = _interpolated(inside, mean_slope_table(self, bound, z.device), bound)
        else:
            integral = self._quadrature(inside)
        if within:
            return integral
        share = torch.where(z.abs() > bound, bound / z.abs(), torch.ones_like(z))
        beyond = (1 - share) if self.constant_beyond else (1 - share.square()) / 2
        return share.square() * integral + beyond * self.slope(z)

    def _quadrature(self, z: Tensor) -> Tensor:
        """``∫₀¹ α r(αz) dα`` for z inside the bound."""
        nodes, weights = gauss_legendre(NODES)
        integral = torch.zeros_like(z)
        for node, weight in zip(nodes, weights, strict=True):
            integral += (weight * node) * self.slope(z * node)
        return integral


#: Cells of the table of J on one unit of z: the cubics between its points are exact to 1e-9.
CELLS = 16


@lru_cache
def mean_slope_table(g: Activation, bound: float, device: torch.device) -> Tensor:
    """The cubic on each cell of [−bound, bound] that meets J and its slope at both ends, (4, k)."""
    points = torch.linspace(-bound, bound, int(2 * bound) * CELLS + 1, dtype=torch.float64)
    with torch.enable_grad():
        leaf = points.requires_grad_()
        value = g._quadrature(leaf) + 0 * leaf  # whose slope may be constant
        slope = torch.autograd.grad(value.sum(), leaf)[0] / CELLS
    value = value.detach()
    rise, first, last = value.diff(), slope[:-1], slope[1:]
    cubics = torch.stack([value[:-1], first, 3 * rise - 2 * first - last, first + last - 2 * rise])
    return cubics.to(device, torch.float32)


def _interpolated(z: Tensor, table: Tensor, bound: float) -> Tensor:
    """J by its table, for z inside the bound."""
    place = z * CELLS  # exactly, because there are a power of two
    first = int(bound) * CELLS
    # NaN stays NaN by its part of the cell, but no index may be NaN.
    cell = place.floor().clamp_(-first, first - 1).nan_to_num_(0.0)
    part = place.sub_(cell)
    index = cell.long() + first
    a, b, c, d = (row.take(index) for row in table)
    return a + part * (b + part * (c + part * d))


@lru_cache
def gauss_legendre(count: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of Gauss–Legendre quadrature on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


def _normal_cdf(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(z * -math.sqrt(0.5))


def _tanh_cdf(constant: float) -> Callable[[Tensor], Tensor]:
    """½(1 + tanh(c (z + 0.044715 z³))) as a sigmoid, which does not round to 0 at −∞."""
    return lambda z: torch.sigmoid(2 * constant * z * (1 + 0.044715 * z * z))


def _times_z(slope: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda z: z * slope(z)


def _gated_linear(slope: Callable[[Tensor], Tensor]) -> Activation:
    """An activation of the form ``g(z) = z · slope(z)``."""
    return Activation(_times_z(slope), slope)


def _tanh_over(z: Tensor) -> Tensor:
    """tanh(z)/z, by its series near 0."""
    small = z.abs() < 0.05
    safe = torch.where(small, torch.ones_like(z), z)
    square = z * z
    series = 1 - square / 3 * (
        1 - square * 0.4 * (1 - square * (17 / 42) * (1 - square * (62 / 153)))
    )
    return torch.where(small, series, torch.tanh(safe) / safe)


def _sigmoid_slope(z: Tensor) -> Tensor:
    # σ(z) = ½ + ½ tanh(z/2), so its slope from 0 is ¼ · tanh(z/2) / (z/2).
    return 0.25 * _tanh_over(z / 2)


def _step(z: Tensor) -> Tensor:
    return (z > 0).to(z.dtype)


_GELU = Activation(F.gelu, _normal_cdf)
_TANH_GELU = replace(_gated_linear(_tanh_cdf(math.sqrt(2 / math.pi))), logistic="tanh")
# Bloom and gelu_fast write √(2/π) to eight digits, and in float64 that is visible.
_SHORT_TANH_GELU = _gated_linear(_tanh_cdf(0.79788456))
_FAST_GELU = _gated_linear(_tanh_cdf(0.7978845608))
_SILU = replace(_gated_linear(torch.sigmoid), logistic="plain")
_RELU = Activation(torch.relu, _step, kinked=True)
_SQUARED_RELU = Activation(
    lambda z: torch.relu(z).square(), torch.relu, linear_beyond=None, kinked=True
)
_TANH = Activation(torch.tanh, _tanh_over, linear_beyond=None, constant_beyond=20.0)
_SIGMOID = Activation(
    torch.sigmoid, _sigmoid_slope, at_zero=0.5, linear_beyond=None, constant_beyond=40.0
)

ACTIVATIONS: dict[str, Activation] = {
    "gelu": _GELU,
    "gelu_python": _GELU,
    "gelu_new": _TANH_GELU,
    "gelu_python_tanh": _TANH_GELU,
    "gelu_pytorch_tanh": _TANH_GELU,
    "gelu_accurate": _TANH_GELU,
    "gelu_fast": _FAST_GELU,
    "bloom_gelu": _SHORT_TANH_GELU,
    "quick_gelu": _gated_linear(lambda z: torch.sigmoid(1.702 * z)),
    "silu": _SILU,
    "swish": _SILU,
    "relu": _RELU,
    "relu2": _SQUARED_RELU,
    "leaky_relu": Activation(
        F.leaky_relu,
        lambda z: torch.where(z > 0, torch.ones_like(z), torch.full_like(z, 0.01)),
        kinked=True,
    ),
    "mish": _gated_linear(lambda z: torch.tanh(F.softplus(z))),
    "tanh": _TANH,
    "sigmoid": _SIGMOID,
    "linear": Activation(lambda z: z, torch.ones_like),
}


def activation(name: str) -> Activation:
    """The activation that transformers calls `name`."""
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"the feed-forward activation {name!r} has no known slope; "
            f"known are: {', '.join(sorted(ACTIVATIONS))}"
        )
    return ACTIVATIONS[name]
