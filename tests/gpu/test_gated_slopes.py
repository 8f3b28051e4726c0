"""The kernels of scores, by Triton's interpreter or on a GPU, against PyTorch."""

from __future__ import annotations

import pytest
import torch
from one_case import in_one_case

pytest.importorskip("triton")

from normlens.frozen.activations import CELLS, Nonlinearity, activation, mean_slope_table
from normlens.gpu.rows import gated_slopes
from normlens.gpu.split_products import halves

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@in_one_case("name", ["silu", "gelu_pytorch_tanh"])
def test_slopes_in_one_pass(name):
    """Also beyond the table, at its ends, and of NaN."""
    g = activation(name)
    # NumPy, which the interpreter computes with, warns of exponentials that overflow.
    far = [-40.0, -500.0, -1e4] if DEVICE == "cuda" else []
    special = torch.tensor([0.0, -0.0, 40.0, 39.99, 41.0, *far, 1e4, float("nan")])
    low = -45 if DEVICE == "cuda" or name == "silu" else -8
    a = torch.cat([torch.linspace(low, 45, 3001), special])
    u = torch.linspace(-3, 5, len(a))
    table = mean_slope_table(g, torch.device(DEVICE))
    made = gated_slopes(a.to(DEVICE), u.to(DEVICE), table, CELLS, 40.0, tanh=g.logistic == "tanh")
    exact = Nonlinearity(g).linearised("ig", [a.double(), u.double()])
    for found, right in zip(made, (*exact.slopes, exact.hidden), strict=True):
        found = found.cpu().double()
        assert found[-1].isnan()
        error = (found[:-1] - right[:-1]).abs()
        assert (error <= 1e-6 + 1e-6 * right[:-1].abs()).all()


def test_which_activations_the_kernel_computes():
    assert activation("silu").logistic == "plain"
    assert activation("gelu_pytorch_tanh").logistic == "tanh"
    assert activation("gelu").logistic is None
    assert activation("bloom_gelu").logistic is None  # whose constant has eight digits


@in_one_case("scaled", [False, True])
def test_numbers_are_the_sum_of_their_halves(scaled):
    v = torch.randn(3, 7, 129, generator=torch.Generator().manual_seed(0)) * 1e3
    scale = torch.linspace(-2, 2, 7 * 129).view(7, 129) if scaled else None
    high, low = halves(v.to(DEVICE), None if scale is None else scale.to(DEVICE))
    assert high.dtype == low.dtype == torch.bfloat16
    exact = v.double() if scale is None else v.double() * scale.double()
    error = (high.cpu().double() + low.cpu().double() - exact).abs()
    # The interpreter cuts digits off where a GPU rounds.
    digits = 16 if DEVICE == "cuda" else 14
    assert (error <= 2.0**-digits * exact.abs() + 1e-30).all()
