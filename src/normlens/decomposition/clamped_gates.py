"""gpt-oss's gate, ``f(a, u) = g(min(a, L)) (clip(u, −L, L) + 1)``, and its mean slopes.

A slope is 0 where its argument lies beyond the limit, so a straight path falls into pieces, on each
of which both arguments are either on their way or constant.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from normlens.decomposition.activations import Activation
from normlens.decomposition.paths import gated_slopes_between


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
