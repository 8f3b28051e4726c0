"""Mean slopes of an activation along a straight path between any two points."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from normlens.decomposition.activations import Activation, gauss_legendre

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
