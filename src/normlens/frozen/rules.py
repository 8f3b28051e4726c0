"""Rules that linearise a feed-forward block's nonlinearity for its parts.

The hidden vector is ``h = g(z)``, or ``g(a) ⊙ u`` in a gated block. A rule writes it as

    h_i = Σ_j Σ_k (F_i(x_j) W_k) ⊙ r^k_i + h^b_i        (k: up; or gate and up)

so a rule is a set of slopes ``r^k`` per target and neuron, and the bias's share ``h^b``. The
Shapley value is not of this form; it is sampled in `shapley`.

Paper: Kobayashi et al. 2024, eq. 6 (integrated gradients with a zero baseline).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from normlens.frozen.activations import (
    CELLS,
    Activation,
    activation,
    along_short,
    clamped_gradient,
    clamped_slopes,
    clamped_slopes_between,
    clamped_value,
    gated_slopes_between,
    mean_slope_table,
    path_length,
)
from normlens.frozen.parts import Bias
from normlens.layers import FeedForward
from normlens.plan.memory import kernels_run_on

#: The bias's share of the neurons' arguments, computed where a rule needs it.
Share = Callable[[], Tensor]


@dataclass(frozen=True)
class Linearised:
    """The slopes of one feed-forward block at its real input."""

    slopes: tuple[Tensor, ...]  # one (b, i, m) per input projection of `projections`
    unowned: Callable[[], Tensor]  # computes `bias`, which not everybody asks for
    hidden: Tensor  # (b, i, m), the real h
    from_zero: bool = False  # the path starts at 0, so all of h but g(0) and biases is owned

    @cached_property
    def bias(self) -> Tensor:
        """The share of h that no token owns, (b, i, m)."""
        return self.unowned()


def projections(ff: FeedForward) -> tuple[Tensor, ...]:
    """The input projections that `Linearised.slopes` belong to, each (d, m)."""
    return (ff.up.weight,) if ff.gate is None else (ff.gate.weight, ff.up.weight)


def hidden(ff: FeedForward, y: Tensor) -> Tensor:
    """The real hidden vector of the block for input `y`, (b, i, m)."""
    g = activation(ff.activation)
    if ff.gate is None:
        return g.value(ff.up(y))
    return _gated_value(g, ff.gate(y), ff.up(y), ff.limit)


def _gated_value(g: Activation, a: Tensor, u: Tensor, limit: float | None) -> Tensor:
    return g.value(a) * u if limit is None else clamped_value(g, limit, a, u)


def linearise(ff: FeedForward, total: Tensor, bias: Bias, rule: str) -> Linearised:
    """Slopes and bias share of block `ff` at the real input `total`, of which `bias` is unowned."""
    g = activation(ff.activation)
    if ff.gate is None:
        return PLAIN_RULES[rule](g, ff.up(total), partial(bias.through, ff.up))
    shares = partial(bias.through, ff.gate), partial(bias.through, ff.up)
    return GATED_RULES[rule](g, ff.gate(total), ff.up(total), *shares, ff.limit)


# Plain blocks: h = g(z), of which z_b is the bias's share of z ----------------------------------


def _ig(g: Activation, z: Tensor, z_b: Share) -> Linearised:
    """Path 0 → z: ``r = (g(z) − g(0)) / z``."""
    r = g.slope(z)
    at_zero = g.at_zero

    def unowned() -> Tensor:
        share = z_b() * r
        return share.add_(at_zero) if at_zero else share

    h = z * r  # g(z) − g(0)
    return Linearised((r,), unowned, h.add_(at_zero) if at_zero else h, True)


def _ig_bias(g: Activation, z: Tensor, z_b: Share) -> Linearised:
    """Path z_b → z: ``r = (g(z) − g(z_b)) / (z − z_b)``, and FF(0) stays with the bias."""
    start = z_b()
    delta, short = path_length(g, start, z)
    quotient = (g.value(z) - g.value(start)) / torch.where(short, torch.ones_like(z), delta)
    r = torch.where(short, along_short(lambda t, _: g.derivative(t), start, delta), quotient)
    return Linearised((r,), lambda: g.value(start), g.value(z))


def _gradient(g: Activation, z: Tensor, z_b: Share) -> Linearised:
    """``r = g′(z)``; the remainder goes to the bias."""
    r, h = g.derivative(z), g.value(z)
    return Linearised((r,), lambda: h - (z - z_b()) * r, h)


# Gated blocks: h = g(a) ⊙ u, of which a_b and u_b are the bias's shares --------------------------
#
# A gate with a limit L is h = g(min(a, L)) ⊙ (clip(u, −L, L) + 1).


def _gated_ig(
    g: Activation, a: Tensor, u: Tensor, a_b: Share, u_b: Share, limit: float | None = None
) -> Linearised:
    """Path (0, 0) → (a, u).

    ``r^a = u ∫ α g′(αa) dα`` and ``r^u = ∫ g(αa) dα``. With ``g(t) = g(0) + t r(t)`` both follow
    from ``J = ∫ α r(αa) dα``: ``r^u = g(0) + a J`` and, by parts, ``r^a = u (r(a) − J)``.
    """
    if limit is not None:
        r_a, r_u = clamped_slopes(g, limit, a, u)
        h = clamped_value(g, limit, a, u)
    elif g.logistic is not None and kernels_run_on(a.device, a.dtype) and a.is_cuda:
        from normlens.gpu.operands import gated_slopes

        assert g.linear_beyond is not None
        table = mean_slope_table(g, g.linear_beyond, a.device)
        tanh = g.logistic == "tanh"
        r_a, r_u, h = gated_slopes(a, u, table, CELLS, g.linear_beyond, tanh=tanh)
    else:
        mean, slope = g.mean_slope(a), g.slope(a)
        r_a = u * (slope - mean)
        r_u = mean.mul_(a)
        h = slope.mul_(a)  # g(a) − g(0)
        if g.at_zero:
            r_u, h = r_u.add_(g.at_zero), h.add_(g.at_zero)
        h = h.mul_(u)
    return Linearised((r_a, r_u), lambda: a_b() * r_a + u_b() * r_u, h, True)


def _gated_ig_bias(
    g: Activation, a: Tensor, u: Tensor, a_b: Share, u_b: Share, limit: float | None = None
) -> Linearised:
    """Path (a_b, u_b) → (a, u), so that FF(0) stays with the bias."""
    a_0, u_0 = a_b(), u_b()
    if limit is None:
        slopes = gated_slopes_between(g, a_0, u_0, a, u)
    else:
        slopes = clamped_slopes_between(g, limit, a_0, u_0, a, u)
    return Linearised(
        slopes, lambda: _gated_value(g, a_0, u_0, limit), _gated_value(g, a, u, limit)
    )


def _gated_gradient(
    g: Activation, a: Tensor, u: Tensor, a_b: Share, u_b: Share, limit: float | None = None
) -> Linearised:
    """The gradient; the remainder goes to the bias."""
    if limit is None:
        r_a, r_u = g.derivative(a) * u, g.value(a)
    else:
        r_a, r_u = clamped_gradient(g, limit, a, u)
    h = _gated_value(g, a, u, limit)
    return Linearised((r_a, r_u), lambda: h - (a - a_b()) * r_a - (u - u_b()) * r_u, h)


PLAIN_RULES: dict[str, Callable[..., Linearised]] = {
    "ig": _ig,
    "ig-bias": _ig_bias,
    "gradient": _gradient,
}
GATED_RULES: dict[str, Callable[..., Linearised]] = {
    "ig": _gated_ig,
    "ig-bias": _gated_ig_bias,
    "gradient": _gated_gradient,
}
