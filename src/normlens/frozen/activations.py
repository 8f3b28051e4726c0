"""Mean slopes of activations and gates along the path of integrated gradients, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.errors import UnsupportedModelError

# Activations with their integrated-gradients slope in closed form.
#
# For an elementwise ``g`` and the straight path from 0, integrated gradients has the exact value
#
#     r(z) = ∫₀¹ g′(αz) dα = (g(z) − g(0)) / z
#
# and every activation below states that ratio in a form that needs no division by z.


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


# Mean slopes of an activation along a straight path between any two points.


SHORT_PATH = 1.0
SHORT_PATH_NODES = 16


def gated_slopes_between(
    g: Activation, a_0: Tensor, u_0: Tensor, a: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean of ``∂(g(a) u)/∂a`` and of ``∂(g(a) u)/∂u`` on the way (a_0, u_0) → (a, u)."""
    d_a, short = path_length(g, a_0, a)
    d_u = u - u_0
    safe = torch.where(short, torch.ones_like(a), d_a)

    def antiderivative(t: Tensor) -> Tensor:
        return g.at_zero * t + t * t * g.mean_slope(t)

    long_u = (antiderivative(a) - antiderivative(a_0)) / safe
    long_a = (g.value(a) * u - g.value(a_0) * u_0 - d_u * long_u) / safe
    short_u = along_short(lambda t, _: g.value(t), a_0, d_a)
    short_a = along_short(lambda t, alpha: g.derivative(t) * (u_0 + alpha * d_u), a_0, d_a)
    return torch.where(short, short_a, long_a), torch.where(short, short_u, long_u)


def path_length(g: Activation, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """Length of each path, and whether it is so short that a difference quotient would cancel.

    A path across a kink at 0 never counts as short: there the quotient is exact, and quadrature
    is not.
    """
    delta = stop - start
    short = delta.abs() < SHORT_PATH
    return delta, short & ((start > 0) == (stop > 0)) if g.kinked else short


def along_short(f: Callable[[Tensor, float], Tensor], start: Tensor, delta: Tensor) -> Tensor:
    """``∫₀¹ f(start + α δ, α) dα`` for short paths; the length is capped where it is not used."""
    capped = delta.clamp(-SHORT_PATH, SHORT_PATH)
    nodes, weights = gauss_legendre(SHORT_PATH_NODES)
    integral = torch.zeros_like(start)
    for node, weight in zip(nodes, weights, strict=True):
        integral += weight * f(start + node * capped, node)
    return integral


# gpt-oss's gate, ``f(a, u) = g(min(a, L)) (clip(u, −L, L) + 1)``, and its mean slopes.
#
# A slope is 0 where its argument lies beyond the limit, so a straight path falls into pieces, on
# each of which both arguments are either on their way or constant.


def clamped_value(g: Activation, limit: float, a: Tensor, u: Tensor) -> Tensor:
    """``f(a, u)``."""
    return g.value(a.clamp(max=limit)) * (u.clamp(-limit, limit) + 1)


def clamped_gradient(g: Activation, limit: float, a: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """``∂f/∂a`` and ``∂f/∂u``."""
    r_a = g.derivative(a.clamp(max=limit)) * (u.clamp(-limit, limit) + 1)
    r_u = g.value(a.clamp(max=limit))
    return r_a * (a <= limit), r_u * (u.abs() <= limit)


def clamped_slopes(g: Activation, limit: float, a: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The means of ``∂f/∂a`` and ``∂f/∂u`` on the way (0, 0) → (a, u), for g with g(0) = 0.

    The arguments meet their limits at ``τ_a = min(1, L/a)`` and ``τ_u = min(1, L/|u|)``. With
    ``τ = min(τ_a, τ_u)``, r(z) = g(z)/z and J(z) = ∫ α r(αz) dα,

        r^u = τ² a J(τa) + (τ_u − τ) g(L)
        r^a = τ_a r(τ_a a) + u τ² (r(τa) − J(τa)) + clip(u) (τ_a r(τ_a a) − τ r(τa))
    """
    if g.at_zero:
        raise ValueError("a gate with limits needs an activation that is 0 at 0")
    one = torch.ones_like(a)
    t_a = torch.where(a > limit, limit / a, one)
    t_u = torch.where(u.abs() > limit, limit / u.abs(), one)
    t = torch.minimum(t_a, t_u)
    mean, slope = g.mean_slope(t * a), g.slope(t * a)
    whole = t_a * g.slope(t_a * a)  # ∫ g′ as long as a is on its way
    r_u = t * t * a * mean + (t_u - t) * g.value(torch.full_like(a, limit))
    r_a = whole + u * t * t * (slope - mean) + u.clamp(-limit, limit) * (whole - t * slope)
    return r_a, r_u


def clamped_slopes_between(
    g: Activation, limit: float, a_0: Tensor, u_0: Tensor, a: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """The means of ``∂f/∂a`` and ``∂f/∂u`` on the way (a_0, u_0) → (a, u), piece by piece."""
    d_a, d_u = a - a_0, u - u_0
    meets = [_time(a_0, d_a, limit), _time(u_0, d_u, limit), _time(u_0, d_u, -limit)]
    ends = torch.stack([torch.zeros_like(a), *meets, torch.ones_like(a)]).sort(0).values
    r_a, r_u = torch.zeros_like(a), torch.zeros_like(u)
    for first, last in pairwise(ends):
        points = [
            ((a_0 + t * d_a).clamp(max=limit), (u_0 + t * d_u).clamp(-limit, limit) + 1)
            for t in (first, last)
        ]
        slope_a, slope_u = gated_slopes_between(g, *points[0], *points[1])
        middle, share = (first + last) / 2, last - first
        r_a += share * slope_a * (a_0 + middle * d_a < limit)
        r_u += share * slope_u * ((u_0 + middle * d_u).abs() < limit)
    return r_a, r_u


def _time(start: Tensor, delta: Tensor, level: float) -> Tensor:
    """The part of the way after which an argument meets a level; an end if it never does."""
    moves = delta != 0
    time = (level - start) / torch.where(moves, delta, torch.ones_like(delta))
    return torch.where(moves, time, torch.ones_like(time)).clamp(0, 1)
