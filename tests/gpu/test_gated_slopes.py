"""The kernels of scores, by Triton's interpreter or on a GPU, against PyTorch."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from one_case import in_one_case

pytest.importorskip("triton")

from normlens.frozen.activations import Nonlinearity, activation
from normlens.frozen.attention import QueryKey
from normlens.gpu import attention
from normlens.gpu.matmul import rounded_once
from normlens.gpu.rows import gated_scores, gated_slopes
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
    made = gated_slopes(a.to(DEVICE), u.to(DEVICE), g)
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


@in_one_case("name", ["silu", "gelu_pytorch_tanh"])
def test_scores_of_neurons_in_one_pass(name):
    """Of several scores, and of more neurons than one pass of a program holds."""
    g, generator = activation(name), torch.Generator().manual_seed(0)
    a, u = (torch.randn(2, 3, 1100, generator=generator) for _ in "au")
    arriving = torch.randn(2, 2, 3, 1100, generator=generator)
    weighted, passed = gated_scores(a.to(DEVICE), u.to(DEVICE), arriving.to(DEVICE), g)
    exact = Nonlinearity(g).linearised("ig", [a.double(), u.double()])
    for found, slope in zip(weighted, exact.slopes, strict=True):
        right = arriving * slope
        assert found.dtype == torch.bfloat16
        assert ((found.cpu() - right).abs() <= 2.0**-7 * right.abs() + 1e-6).all()
    right = (arriving * exact.hidden).sum(-1)
    torch.testing.assert_close(passed.cpu().double(), right, rtol=1e-4, atol=1e-3)


@in_one_case("split", [False, True])
@in_one_case("dtype", [torch.float16, torch.bfloat16])
@in_one_case("kind", ["causal", "all", "window", "capped", "sinks"])
def test_gradients_are_spread_as_tiles_do(kind, dtype, split):
    """Over groups of heads, of a length that fills no block, by the tiles in float64."""
    generator = torch.Generator().manual_seed(0)
    n = 150
    query, key = (
        torch.randn(2, heads, n, 24, generator=generator).to(dtype).to(DEVICE) for heads in (4, 2)
    )
    g = 3 * torch.randn(2, 4, n, 40, generator=generator).to(DEVICE)
    places = torch.arange(n, device=DEVICE)
    mask = (places[:, None] >= places) & (places[:, None] < places + 40) & (places[:, None] < 140)
    options = {
        "causal": {"causal": True},
        "all": {},
        "window": {"mask": mask.expand(2, 1, n, n)},
        "capped": {"causal": True, "soft_cap": 1.5},
        "sinks": {"causal": True, "sinks": torch.linspace(-1, 3, 4, device=DEVICE)},
    }[kind]
    given = QueryKey(query, key, 0.3, torch.float32, **options)
    exact = QueryKey(query.double(), key.double(), 0.3, torch.float64, **options)
    if kind == "window":  # rows that see nothing are padding
        g[:, :, 140:] = 0
    expected = exact.spread(g.double(), 2)
    with nullcontext() if split else rounded_once():
        found = attention.spread(given, g)
    error = (found.double() - expected).norm() / expected.norm()
    assert error < (2e-3 if dtype == torch.float16 else 6e-3)
