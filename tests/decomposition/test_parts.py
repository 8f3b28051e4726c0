"""Factored parts: norms from Gram matrices, also where heads cancel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import largest_error, reference
from torch.utils.flop_counter import FlopCounterMode

from normlens.components import Layer, Linear, Norm
from normlens.decomposition import parts
from normlens.decomposition.rules import linearise


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("biases", [False, True])
def test_attention_gives_the_sums_of_its_parts(groups, biases, problem):
    given = problem("post", groups=groups, biases=biases, batch=2)
    vectors, _ = parts.attend(given.layer.attention, given.x, given.alpha)
    for index in range(2):
        expected = reference(given.layer, given.x[index], given.alpha[index]).parts["ATTN-N"]
        own = expected.owned.diagonal().T  # (i, d)
        assert largest_error(vectors.diagonal[index], own) < 1e-12
        assert largest_error(vectors.mixed[index], expected.owned.sum(1) - own) < 1e-12
        torch.testing.assert_close(vectors.bias[index], expected.bias, rtol=0, atol=1e-15)


def test_attention_sums_cost_no_more_than_the_attention_itself(problem):
    """Three products with d×d weights and one with α: heads are mixed before ``W_O``."""
    n, d = 40, 16
    given = problem("post", n=n, d=d, heads=4, biases=False)
    with FlopCounterMode(display=False) as counted:
        parts.attend(given.layer.attention, given.x, given.alpha)
    assert counted.get_total_flops() == 3 * 2 * n * d * d + 2 * n * n * d


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_the_rows_of_the_bias_mix_to_its_vectors(centred, biases, problem):
    """Before, between and behind two norms, and behind a projection."""
    given = problem("both", centred=centred, biases=biases, batch=2)
    up = given.layer.feed_forward.up
    vectors, factors = parts.attend(given.layer.attention, given.x, given.alpha)
    for norm in [step for step in given.layer.steps if isinstance(step, Norm)][1:3]:
        inverse = parts.inverse_deviation(vectors.total, norm)
        vectors, factors = vectors.normalise(norm, inverse), factors.normalise(norm, inverse)
        torch.testing.assert_close(factors.bias.vectors, vectors.bias, rtol=0, atol=1e-13)
        torch.testing.assert_close(factors.bias.through(up), up(vectors.bias), rtol=0, atol=1e-13)
    assert len(factors.bias.rows) == biases * (3 if centred else 1)
    assert vectors.bias.any() == biases  # otherwise the comparisons would be of zeros


@pytest.mark.parametrize("gated", [False, True])
def test_the_bias_costs_its_rows_and_not_its_vectors(gated, problem):
    n, d, m = 40, 16, 24
    given = problem("bare", n=n, d=d, m=m, gated=gated)
    vectors, factors = parts.attend(given.layer.attention, given.x, given.alpha)
    with FlopCounterMode(display=False) as counted:
        linearise(given.layer.feed_forward, vectors.total, factors.bias, "ig")
    assert counted.get_total_flops() == (1 + gated) * 2 * m * (n * d + d + n)


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3])
def test_norms_in_float32_where_heads_nearly_cancel(gap, problem):
    """Two heads with opposite outputs: a Gram matrix in float32 would lose half of the digits."""
    given = problem("post", heads=2, d=16, n=8, biases=False, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    attention = given.layer.attention
    value = attention.value.weight[:, :8].repeat(1, 2)
    noise = gap * torch.randn(8, 16, generator=generator)
    output = torch.cat([attention.output.weight[:8], -attention.output.weight[:8] + noise])
    attention = replace(attention, value=Linear(value), output=Linear(output))
    alpha = given.alpha[:, :1].repeat(1, 2, 1, 1)
    layer = Layer([attention])
    found = replace(given, layer=layer, alpha=alpha).solve().norms["ATTN-N"][0].double()
    expected = reference(layer, given.x[0], alpha[0]).maps["ATTN-N"]
    heads = reference(layer, given.x[0], alpha[0]).head_maps["ATTN-N"].sum(0)
    assert (expected / heads).median() < 3 * gap  # they do cancel
    assert float(((found - expected) / expected).abs().max()) < 1e-6 / gap


def test_parts_that_cancel_entirely_are_zero_not_nan(problem):
    given = problem("post", heads=2, d=16, biases=False, dtype=torch.float32)
    attention = given.layer.attention
    value = attention.value.weight[:, :8].repeat(1, 2)
    output = torch.cat([attention.output.weight[:8], -attention.output.weight[:8]])
    attention = replace(attention, value=Linear(value), output=Linear(output))
    alpha = given.alpha[:, :1].repeat(1, 2, 1, 1)
    norms = replace(given, layer=Layer([attention]), alpha=alpha).solve().norms["ATTN-N"]
    assert torch.isfinite(norms).all()
    assert norms.max() < 1e-6


@pytest.mark.parametrize("elements", [1, 100, 1000])
def test_norms_in_chunks(elements, problem, monkeypatch):
    given = problem("post", n=9, batch=2)
    expected = given.solve()
    monkeypatch.setattr(parts, "NORM_CHUNK_ELEMENTS", elements)
    found = given.solve()
    for scope, norms in expected.norms.items():
        torch.testing.assert_close(found.norms[scope], norms, rtol=0, atol=1e-14)


def test_attention_weights_are_left_alone(problem):
    """The algebra works on its own copy of the weights that the model handed over."""
    given = problem("post")
    x, alpha = given.x.clone(), given.alpha.clone()
    given.solve(heads=True)
    assert torch.equal(given.alpha, alpha)
    assert torch.equal(given.x, x)
