"""Slopes of activations against quadrature, and against what transformers computes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import model_activation

from normlens.errors import UnsupportedModelError
from normlens.frozen.activations import ACTIVATIONS, activation

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies

every_activation = in_one_case("name", ACTIVATIONS)
PANEL = 0.5  # every kink (0, and 6 of relu6) lies between two panels
HARD = [0.0, 1e-30, -1e-30, 1e-8, -1e-8, 1e-4, -1e-4, 0.05, -0.05, 40.0, -40.0, 1e4, -1e4]


def integral_from_zero(f, edges: int, sign: int) -> np.ndarray:
    """``∫₀^{s k PANEL} f(t) dt`` for k = 1 … edges, panel by panel."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    starts = torch.arange(edges, dtype=torch.float64)[:, None] * PANEL
    t = sign * (starts + PANEL * (torch.from_numpy(nodes) + 1) / 2)
    panels = (f(t) * torch.from_numpy(weights)).sum(-1) * PANEL / 2 * sign
    return panels.cumsum(0).numpy()


def derivative(g):
    def f(t):
        leaf = t.clone().requires_grad_()
        return torch.autograd.grad(g(leaf).sum(), leaf)[0]

    return f


@every_activation
def test_value_is_the_models(name):
    z = torch.cat([torch.linspace(-60, 60, 2001), torch.tensor(HARD)]).double()
    expected = model_activation(name)(z)
    torch.testing.assert_close(activation(name).value(z), expected, rtol=1e-12, atol=1e-13)


@every_activation
@in_one_case("sign", [1, -1])
def test_slope_is_the_mean_derivative_along_the_path(name, sign):
    """``r(z) = ∫₀¹ g′(αz) dα`` with autograd's derivative of the model's activation."""
    edges = 80
    z = sign * PANEL * torch.arange(1, edges + 1, dtype=torch.float64)
    integral = integral_from_zero(derivative(model_activation(name)), edges, sign)
    np.testing.assert_allclose(activation(name).slope(z), integral / z.numpy(), atol=1e-12)


@every_activation
@in_one_case("dtype", [torch.float32, torch.float64])
def test_nothing_breaks_at_extreme_arguments(name, dtype):
    g = activation(name)
    z = torch.tensor(HARD, dtype=dtype)
    for function in (g.value, g.slope, g.derivative, g.mean_slope):
        assert torch.isfinite(function(z)).all(), function


@every_activation
def test_slope_in_float32_is_the_float64_slope(name):
    """No digits are lost near 0, where a difference quotient would lose all of them."""
    g = activation(name)
    z = torch.cat([torch.tensor(HARD), torch.logspace(-20, 2, 300), -torch.logspace(-20, 2, 300)])
    exact = g.slope(z.double())
    torch.testing.assert_close(g.slope(z).double(), exact, rtol=2e-6, atol=1e-30)


@every_activation
def test_derivative_is_autograds(name):
    z = torch.linspace(-30, 30, 501, dtype=torch.float64)
    expected = derivative(model_activation(name))(z)
    torch.testing.assert_close(activation(name).derivative(z), expected, rtol=1e-10, atol=1e-12)


@every_activation
def test_mean_slope_is_its_integral(name):
    """``J(z) = ∫₀¹ α r(αz) dα = ∫₀^z (g(t) − g(0)) dt / z²`` to 1e-10, panel by panel."""
    g, found = model_activation(name), activation(name)
    sizes = torch.tensor([1e-3, 0.3, 2.0, 7.5, 12.0, 39.9, 40.0, 40.1, 80.0, 200.0, 500.0]).double()
    edges = torch.cat(
        [torch.zeros(1).double(), sizes, torch.arange(0.5, 500, 0.5).double()]
    ).unique()
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(24))
    widths = edges.diff()[:, None]
    for sign in (1, -1):
        t = sign * (edges[:-1, None] + widths * (nodes + 1) / 2)
        panels = ((g(t) - found.at_zero) * weights * widths / 2).sum(-1) * sign
        integral = panels.cumsum(0)[torch.searchsorted(edges[1:], sizes)]
        expected = integral / sizes.square()
        error = (found.mean_slope(sign * sizes) - expected).abs()
        assert (error <= 1e-10 * expected.abs().clamp_min(1)).all(), (sign, error)


@every_activation
@given(z=st.floats(-1e4, 1e4))
def test_slope_times_argument_is_the_rise(name, z):
    """``g(0) + z r(z) = g(z)``."""
    g = activation(name)
    point = torch.tensor([z], dtype=torch.float64)
    rise = g.at_zero + point * g.slope(point)
    torch.testing.assert_close(rise, model_activation(name)(point), rtol=1e-12, atol=1e-12)


def test_an_unknown_activation_is_named_beside_the_known_ones():
    with pytest.raises(UnsupportedModelError, match=r"'swoosh'.*known are: .*gelu.*silu"):
        activation("swoosh")


@in_one_case("name", sorted(ACTIVATIONS))
def test_mean_slopes_in_float32_are_those_of_the_quadrature(name):
    """Single precision reads J from a table; also at its ends, beyond them, and of NaN."""
    special = [0.0, -0.0, 39.999, 40.0, -40.0, 40.001, 1e4, -1e4, 1e-30]
    z = torch.cat([torch.linspace(-45, 45, 20001), torch.tensor(special)])
    g = ACTIVATIONS[name]
    exact = g.mean_slope(z.double())
    # Squares double the error of their argument.
    relative = 1e-6 if name == "relu2" else 2e-7
    assert ((g.mean_slope(z) - exact).abs() <= 1e-7 + relative * exact.abs()).all()
    assert g.kinked or g.mean_slope(torch.tensor([math.nan])).isnan().all()
