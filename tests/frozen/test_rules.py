"""Rules for the nonlinearity against their definitions, one neuron at a time."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import RULES as REFERENCE_RULES
from reference import hidden as reference_hidden
from reference import model_activation
from scipy.integrate import quad

from normlens.frozen.activations import ACTIVATIONS
from normlens.frozen.feedforward import FrozenFeedForward, hidden
from normlens.layers import FeedForward, Linear
from normlens.options import LINEAR_RULES

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies

every_activation = in_one_case("name", ACTIVATIONS)
every_rule = in_one_case("rule", LINEAR_RULES)
some_activations = in_one_case(
    "name",
    ["gelu", "gelu_new", "silu", "quick_gelu", "relu", "relu2", "leaky_relu", "mish", "tanh"],
)

VALUES = [-30.0, -6.3, -2.0, -0.4, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 0.3, 1.7, 5.8, 6.3, 31.0]
PAIRS = torch.tensor(list(itertools.product(VALUES, VALUES)), dtype=torch.float64)
QUADRUPLES = torch.tensor(
    list(itertools.product(VALUES[1:-1:2], [-1.5, 0.7], VALUES[2:-1:2], [-0.2, 2.0])),
    dtype=torch.float64,
)


def plain(name: str, dtype: torch.dtype = torch.float64) -> FeedForward:
    """A block with one neuron whose argument is its input."""
    one = torch.ones(1, 1, dtype=dtype)
    return FeedForward(Linear(one), Linear(one), name)


def gated(name: str, dtype: torch.dtype = torch.float64) -> FeedForward:
    """A block with one neuron whose gate reads the first input and whose factor the second."""
    first = torch.tensor([[1.0], [0.0]], dtype=dtype)
    down = torch.ones(1, 2, dtype=dtype)
    return FeedForward(Linear(1 - first), Linear(down), name, gate=Linear(first))


def points(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Real inputs and the bias's share of them, (1, i, d) each."""
    half = table.shape[1] // 2
    return table[None, :, :half], table[None, :, half:]


def linearise(ff: FeedForward, total: torch.Tensor, bias: torch.Tensor, rule: str) -> Any:
    """Slopes and real h, and the share of h that no token owns if `bias` of the input is such."""
    block = FrozenFeedForward.at(ff, total, bias, rule)
    share = torch.zeros_like(block.neurons.hidden) if block.own is None else block.own
    for linear, slope in zip(ff.inputs, block.neurons.slopes, strict=True):
        share = share + (bias @ linear.weight) * slope
    return SimpleNamespace(slopes=block.neurons.slopes, hidden=block.neurons.hidden, bias=share)


def rest(ff: FeedForward, total: torch.Tensor, bias: torch.Tensor, rule: str) -> torch.Tensor:
    """What `h = Σ_k ((y − b) W_k) r^k + h^b` misses, relative to the largest term of the sum."""
    at = linearise(ff, total, bias, rule)
    pairs = zip(ff.inputs, at.slopes, strict=True)
    terms = [((total - bias) @ linear.weight) * r for linear, r in pairs]
    terms.append(at.bias)
    size = torch.stack([at.hidden, *terms]).abs().amax(0).clamp_min(1.0)
    return ((sum(terms) - at.hidden) / size).abs()


@every_activation
@every_rule
def test_shares_add_up(name, rule):
    total, bias = points(PAIRS)
    worst, where = rest(plain(name), total, bias, rule).flatten().max(0)
    assert worst < 1e-12, f"at z, z_b = {PAIRS[where].tolist()}"


@every_activation
@in_one_case("rule", LINEAR_RULES)
def test_gated_shares_add_up(name, rule):
    total, bias = points(QUADRUPLES)
    worst, where = rest(gated(name), total, bias, rule).flatten().max(0)
    assert worst < 1e-10, f"at a, u, a_b, u_b = {QUADRUPLES[where].tolist()}"


@every_activation
def test_hidden_is_what_the_model_computes(name):
    total, _ = points(QUADRUPLES)
    for ff, arguments in ((plain(name), [total[..., :1]]), (gated(name), total.split(1, -1))):
        y = total[..., : ff.up.weight.shape[0]]
        expected = reference_hidden(ff)(*arguments)
        torch.testing.assert_close(hidden(ff, y), expected, rtol=1e-12, atol=1e-12)


@every_activation
@every_rule
def test_slopes_and_bias_equal_the_reference(name, rule):
    """One token part beside the bias: its share is the slope times the part."""
    moderate = PAIRS[(PAIRS.abs() < 5).all(1)]
    total, bias = points(moderate)
    at = linearise(plain(name), total, bias, rule)
    token = (total - bias)[0, :, 0]
    shares, bias_part = REFERENCE_RULES[rule](
        model_activation(name), [token[None, :, None]], [bias[0]]
    )
    torch.testing.assert_close(at.slopes[0][0, :, 0] * token, shares[0, :, 0], atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(at.bias[0], bias_part, atol=1e-9, rtol=1e-9)


@some_activations
@in_one_case("rule", LINEAR_RULES)
def test_gated_slopes_and_bias_equal_the_reference(name, rule):
    """The two arguments' shares, told apart by giving the token only one of them."""
    moderate = QUADRUPLES[(QUADRUPLES.abs() < 5).all(1)]
    total, bias = points(moderate)
    ff = gated(name)
    at = linearise(ff, total, bias, rule)
    tokens = [(total - bias)[0, None, :, k : k + 1] for k in (0, 1)]
    zero = torch.zeros_like(tokens[0])
    # Two players: the token's gate part and its factor part.
    players = [torch.cat([tokens[0], zero]), torch.cat([zero, tokens[1]])]
    shares, bias_part = REFERENCE_RULES[rule](
        reference_hidden(ff), players, [bias[0, :, k : k + 1] for k in (0, 1)]
    )
    for k in (0, 1):
        share = at.slopes[k][0] * tokens[k][0]
        torch.testing.assert_close(share, shares[k], atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(at.bias[0], bias_part, atol=1e-9, rtol=1e-9)


@some_activations
@given(z=st.floats(-20, 20), z_b=st.floats(-20, 20))
def test_ig_bias_is_the_mean_derivative_from_bias_to_argument(name, z, z_b):
    """``r = ∫₀¹ g′(z_b + α(z − z_b)) dα``, by adaptive quadrature."""
    hypothesis.assume(abs(z - z_b) > 1e-6)
    g = model_activation(name)

    def slope(alpha: float) -> float:
        point = torch.tensor(z_b + alpha * (z - z_b), dtype=torch.float64, requires_grad=True)
        return float(torch.autograd.grad(g(point), point)[0])

    cut = z_b / (z_b - z)
    edges = [0.0, cut, 1.0] if 0 < cut < 1 else [0.0, 1.0]
    expected = sum(
        quad(slope, low, high, epsabs=1e-11, epsrel=1e-11, limit=200, full_output=1)[0]
        for low, high in itertools.pairwise(edges)
    )
    total, bias = points(torch.tensor([[z, z_b]], dtype=torch.float64))
    found = linearise(plain(name), total, bias, "ig-bias").slopes[0]
    assert abs(float(found) - expected) < 1e-8


@every_activation
@every_rule
def test_slopes_in_float32_are_the_float64_slopes(name, rule):
    """Short paths, also those across 0, cost no more digits than float32 has."""
    values = [0.0, *np.logspace(-7, 1, 25)]
    values = sorted({*values, *(-v for v in values)})
    table = torch.tensor(list(itertools.product(values, values)), dtype=torch.float32)
    total, bias = points(table)
    found = linearise(plain(name, torch.float32), total, bias, rule)
    exact = linearise(plain(name), total.double(), bias.double(), rule)
    difference = (found.slopes[0] - exact.slopes[0]).abs().flatten()
    worst, where = difference.max(0)
    assert worst < 1e-5, f"at z, z_b = {table[where].tolist()}"
