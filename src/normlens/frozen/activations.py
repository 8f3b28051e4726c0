"""Activations, and the rules that linearise them: mean slopes along a path, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.errors import InputError, UnsupportedModelError
from normlens.gpu.sizes import kernels_run_on
from normlens.options import IG, OWN_RULES

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
    bound: float = 40.0
    #: … or a constant
    is_bounded: bool = False
    #: it has a kink at 0, across which no quadrature may go
    kinked: bool = False
    #: what a kernel may compute its slope as: a logistic function of z, or of tanh GELU's argument
    logistic: str | None = None

    def derivative(self, z: Tensor) -> Tensor:
        """``g′(z)``, elementwise."""
        return gradients(self.value, z)[0]

    def mean_slope(self, z: Tensor) -> Tensor:
        """``J(z) = ∫₀¹ α r(αz) dα``, which gated blocks need, by Gauss–Legendre.

        ``J(z) = ∫₀^z (g(t) − g(0)) dt / z²``, so beyond the bound T where g is a line or a constant
        ``J(z) = s² J(±T) + r(z) (1 − s²)/2``, or ``… + r(z) (1 − s)``, with ``s = T/|z|``, and the
        quadrature is only needed for ``|z| ≤ T``.
        """
        bound = self.bound
        # The rest is for the few that lie beyond; NaN does not lie inside.
        within = z.numel() == 0 or bool(z.abs().amax() <= bound)
        inside = z if within else z.clamp(-bound, bound)
        if z.dtype == torch.float32 and not self.kinked and bound < math.inf:
            integral = _interpolated(inside, mean_slope_table(self, z.device), bound)
        else:
            integral = self._quadrature(inside)
        if within:
            return integral
        share = torch.where(z.abs() > bound, bound / z.abs(), torch.ones_like(z))
        beyond = (1 - share) if self.is_bounded else (1 - share.square()) / 2
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
def mean_slope_table(g: Activation, device: torch.device) -> Tensor:
    """The cubic on each cell of [−bound, bound] that meets J and its slope at both ends, (4, k)."""
    points = torch.linspace(-g.bound, g.bound, int(2 * g.bound) * CELLS + 1, dtype=torch.float64)
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


def _gated_linear(slope: Callable[[Tensor], Tensor], logistic: str | None = None) -> Activation:
    """An activation of the form ``g(z) = z · slope(z)``."""
    return Activation(lambda z: z * slope(z), slope, logistic=logistic)


def _tanh_over(z: Tensor) -> Tensor:
    """tanh(z)/z, by its series near 0."""
    small = z.abs() < 0.05
    safe = torch.where(small, torch.ones_like(z), z)
    square = z * z
    series = 1 - square / 3 * (
        1 - square * 0.4 * (1 - square * (17 / 42) * (1 - square * (62 / 153)))
    )
    return torch.where(small, series, torch.tanh(safe) / safe)


_GELU = Activation(F.gelu, _normal_cdf)
_TANH_GELU = _gated_linear(_tanh_cdf(math.sqrt(2 / math.pi)), "tanh")
# Bloom and gelu_fast write √(2/π) to eight digits, and in float64 that is visible.
_SHORT_TANH_GELU = _gated_linear(_tanh_cdf(0.79788456))
_FAST_GELU = _gated_linear(_tanh_cdf(0.7978845608))
_SILU = _gated_linear(torch.sigmoid, "plain")
_RELU = Activation(torch.relu, lambda z: (z > 0).to(z.dtype), kinked=True)
_SQUARED_RELU = Activation(
    lambda z: torch.relu(z).square(), torch.relu, bound=math.inf, kinked=True
)
_TANH = Activation(torch.tanh, _tanh_over, bound=20.0, is_bounded=True)
# σ(z) = ½ + ½ tanh(z/2), so its slope from 0 is ¼ · tanh(z/2) / (z/2).
_SIGMOID = Activation(
    torch.sigmoid, lambda z: 0.25 * _tanh_over(z / 2), at_zero=0.5, is_bounded=True
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


def gradients(f: Callable[..., Tensor], *z: Tensor) -> tuple[Tensor, ...]:
    """The derivative of an elementwise function by each of its arguments."""
    with torch.enable_grad():
        leaves = [argument.detach().requires_grad_() for argument in z]
        return torch.autograd.grad(f(*leaves).sum(), leaves)


# Rules that linearise a feed-forward block's nonlinearity for its parts.
#
# The hidden vector is ``h = g(z)``, or ``g(a) ⊙ u`` in a gated block. A rule writes it as
#
#     h = Σ_k z^k ⊙ r^k + c        (k: up; or gate and up)
#
# so a rule is a set of slopes ``r^k`` per target and neuron, and a constant c that no token owns.
# The Shapley value is not of this form; it is sampled in `shapley`.
#
#     ig         path 0 → z:     r = (g(z) − g(0)) / z,               c = g(0)
#     ig-bias    path z_b → z:   r = (g(z) − g(z_b)) / (z − z_b),     FF(0) stays with the bias
#     gradient                   r = g′(z)
#     one's own (register_rule)  any r
#
# Paper: Kobayashi et al. 2024, eq. 6 (integrated gradients with a zero baseline).


IG_BIAS = "ig-bias"
SHORT_PATH = 1.0
SHORT_PATH_NODES = 16


@dataclass(frozen=True)
class Linearised:
    """The neurons of one feed-forward block, linearised at their real arguments."""

    slopes: tuple[Tensor, ...]  # one (b, i, m) per input projection
    hidden: Tensor  # (b, i, m), the real h
    constant: Tensor | None  # c (b, i, m); None: 0

    def at_tokens(self, some: Tensor | slice) -> Linearised:
        """The same for some tokens of every sequence."""
        constant = None if self.constant is None else self.constant[:, some]
        slopes = tuple(slope[:, some] for slope in self.slopes)
        return Linearised(slopes, self.hidden[:, some], constant)


def own_slopes(rule: str, value: Callable[..., Tensor], z: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The slopes of a rule that a user registered; refused where they cannot be slopes."""
    given = OWN_RULES[rule](value, *(argument.clone() for argument in z))
    slopes = (given,) if isinstance(given, Tensor) else tuple(given)
    shapes = [tuple(getattr(slope, "shape", ())) for slope in slopes]
    if shapes != [tuple(argument.shape) for argument in z]:
        raise InputError(
            f"the rule {rule!r} gives slopes of shapes {shapes}; it needs one for each of "
            f"{len(z)} arguments, of shape {tuple(z[0].shape)}"
        )
    if not all(bool(slope.isfinite().all()) for slope in slopes):
        raise InputError(f"the rule {rule!r} gives slopes that are not finite")
    return tuple(slope.detach().to(z[0]) for slope in slopes)


@dataclass(frozen=True)
class Nonlinearity:
    """``g(z)``; with two arguments the gate ``g(a) u``, and with a limit L gpt-oss's gate.

    That is ``g(min(a, L)) (clip(u, −L, L) + 1)``: a slope is 0 where its argument lies beyond the
    limit.
    """

    g: Activation
    limit: float | None = None

    def value(self, *z: Tensor) -> Tensor:
        """h of its arguments z, or a and u."""
        if len(z) == 1:
            return self.g.value(*z)
        a, u = z
        if self.limit is not None:
            a, u = a.clamp(max=self.limit), u.clamp(-self.limit, self.limit) + 1
        return self.g.value(a) * u

    def linearised(self, rule: str, z: Sequence[Tensor], bias: Sequence[Tensor] = ()) -> Linearised:
        """Slopes, h and constant at arguments `z` by a rule; `IG_BIAS` needs the bias's share."""
        if rule == IG:
            slopes, h = self._from_zero(*z)
            at_zero = self.g.at_zero if len(z) == 1 else 0.0
            return Linearised(slopes, h, torch.full_like(h, at_zero) if at_zero else None)
        start, h = bias if rule == IG_BIAS else z, self.value(*z)
        if rule in OWN_RULES:
            slopes = own_slopes(rule, self.value, z)
        else:
            slopes = self._between(start, z) if rule == IG_BIAS else gradients(self.value, *z)
        constant = self.value(*start)
        for argument, slope in zip(start, slopes, strict=True):
            constant = constant - argument * slope
        return Linearised(slopes, h, constant)

    def _from_zero(self, *z: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The mean slopes on the way 0 → z, and h.

        Of a gate ``r^a = u ∫ α g′(αa) dα`` and ``r^u = ∫ g(αa) dα``. With ``g(t) = g(0) + t r(t)``
        both follow from ``J = ∫ α r(αa) dα``: ``r^u = g(0) + a J`` and ``r^a = u (r(a) − J)``.
        """
        g = self.g
        if len(z) == 1:
            slope = g.slope(*z)
            h = z[0] * slope  # g(z) − g(0)
            return (slope,), h.add_(g.at_zero) if g.at_zero else h
        a, u = z
        if self.limit is not None:
            return self._limited_from_zero(a, u, self.limit), self.value(a, u)
        if self._has_kernel(a):
            from normlens.gpu.rows import gated_slopes  # Triton is slow to import

            r_a, r_u, h = gated_slopes(a, u, g)
            return (r_a, r_u), h
        mean, slope = g.mean_slope(a), g.slope(a)
        r_a = u * (slope - mean)
        r_u, h = mean.mul_(a), slope.mul_(a)  # without g(0)
        if g.at_zero:
            r_u, h = r_u.add_(g.at_zero), h.add_(g.at_zero)
        return (r_a, r_u), h.mul_(u)

    def _has_kernel(self, a: Tensor) -> bool:
        is_plain = self.limit is None and self.g.logistic is not None
        return is_plain and a.is_cuda and kernels_run_on(a.device, a.dtype)

    def scored(
        self, rule: str, z: Sequence[Tensor], g: Tensor
    ) -> tuple[Sequence[Tensor], Tensor] | None:
        """``g ⊙ r^k`` in bfloat16 and ``g · h`` by one kernel; None where no kernel forms them."""
        if rule != IG or len(z) != 2 or not self._has_kernel(z[0]):
            return None
        from normlens.gpu.rows import gated_scores  # Triton is slow to import

        gate, up = z
        return gated_scores(gate, up, g, self.g)

    def _limited_from_zero(self, a: Tensor, u: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        """The same with a limit, for g with g(0) = 0.

        The arguments meet their limits at ``τ_a = min(1, L/a)`` and ``τ_u = min(1, L/|u|)``. With
        ``τ = min(τ_a, τ_u)``, r(z) = g(z)/z and J(z) = ∫ α r(αz) dα,

            r^u = τ² a J(τa) + (τ_u − τ) g(L)
            r^a = τ_a r(τ_a a) + u τ² (r(τa) − J(τa)) + clip(u) (τ_a r(τ_a a) − τ r(τa))
        """
        g = self.g
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

    def _between(self, start: Sequence[Tensor], stop: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The mean slopes on the straight way between any two points.

        With a limit the way falls into pieces, on each of which both arguments are either on their
        way or constant.
        """
        if len(start) == 1:
            return (self._slope_between(start[0], stop[0]),)
        if self.limit is None:
            return self._gate_between(*start, *stop)
        limit, (a_0, u_0) = self.limit, start
        d_a, d_u = stop[0] - a_0, stop[1] - u_0
        meets = [_time(a_0, d_a, limit), _time(u_0, d_u, limit), _time(u_0, d_u, -limit)]
        ends = torch.stack([torch.zeros_like(a_0), *meets, torch.ones_like(a_0)]).sort(0).values
        r_a, r_u = torch.zeros_like(a_0), torch.zeros_like(u_0)
        for first, last in pairwise(ends):
            points = [
                ((a_0 + t * d_a).clamp(max=limit), (u_0 + t * d_u).clamp(-limit, limit) + 1)
                for t in (first, last)
            ]
            slope_a, slope_u = self._gate_between(*points[0], *points[1])
            middle, share = (first + last) / 2, last - first
            r_a += share * slope_a * (a_0 + middle * d_a < limit)
            r_u += share * slope_u * ((u_0 + middle * d_u).abs() < limit)
        return r_a, r_u

    def _slope_between(self, start: Tensor, z: Tensor) -> Tensor:
        """``(g(z) − g(start)) / (z − start)``."""
        g = self.g
        delta, short, safe = self._path(start, z)
        quotient = (g.value(z) - g.value(start)) / safe
        return torch.where(short, _along(lambda t, _: g.derivative(t), start, delta), quotient)

    def _gate_between(
        self, a_0: Tensor, u_0: Tensor, a: Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The means of ``∂(g(a) u)/∂a`` and ``∂(g(a) u)/∂u``."""
        g, d_u = self.g, u - u_0
        d_a, short, safe = self._path(a_0, a)

        def antiderivative(t: Tensor) -> Tensor:
            return g.at_zero * t + t * t * g.mean_slope(t)

        long_u = (antiderivative(a) - antiderivative(a_0)) / safe
        long_a = (g.value(a) * u - g.value(a_0) * u_0 - d_u * long_u) / safe
        short_u = _along(lambda t, _: g.value(t), a_0, d_a)
        short_a = _along(lambda t, alpha: g.derivative(t) * (u_0 + alpha * d_u), a_0, d_a)
        return torch.where(short, short_a, long_a), torch.where(short, short_u, long_u)

    def _path(self, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Length of each path, whether a difference quotient would cancel on it, and a divisor.

        A path across a kink at 0 never counts as short: there the quotient is exact, and quadrature
        is not.
        """
        delta = stop - start
        short = delta.abs() < SHORT_PATH
        if self.g.kinked:
            short &= (start > 0) == (stop > 0)
        return delta, short, torch.where(short, torch.ones_like(delta), delta)


def _along(f: Callable[[Tensor, float], Tensor], start: Tensor, delta: Tensor) -> Tensor:
    """``∫₀¹ f(start + α δ, α) dα`` for short paths; the length is capped where it is not used."""
    capped = delta.clamp(-SHORT_PATH, SHORT_PATH)
    nodes, weights = gauss_legendre(SHORT_PATH_NODES)
    integral = torch.zeros_like(capped)
    for node, weight in zip(nodes, weights, strict=True):
        integral += weight * f(start + node * capped, node)
    return integral


def _time(start: Tensor, delta: Tensor, level: float) -> Tensor:
    """The part of the way after which an argument meets a level; an end if it never does."""
    moves = delta != 0
    time = (level - start) / torch.where(moves, delta, torch.ones_like(delta))
    return torch.where(moves, time, torch.ones_like(time)).clamp(0, 1)
