"""Factored parts: norms from Gram matrices, also where heads cancel."""

from __future__ import annotations

from dataclasses import replace

import torch
from one_case import in_one_case
from reference import reference

from normlens.frozen import parts
from normlens.frozen.layer import freeze
from normlens.frozen.parts import Parts, State
from normlens.layers import Layer, Linear


@in_one_case("centred", [False, True])
@in_one_case("biases", [False, True])
def test_the_bias_of_parts(centred, biases, problem):
    """Before, between and behind two norms, on the way of parts and when the layer is frozen."""
    given = problem("both", centred=centred, biases=biases, batch=2)
    expected = [
        reference(given.layer, given.x[index], given.alpha[index]).parts for index in range(2)
    ]
    frozen = freeze(given.layer, given.x, given.alpha, [6, 6])
    state = State(Parts(given.x), start=Parts(given.x))
    for index, step in enumerate(frozen.steps[: given.layer.steps.index(given.layer.feed_forward)]):
        step.pass_on(state, step.on_parts)
        found = state.stream.bias
        if index in given.layer.scope_of_step:
            bias = torch.stack([e[given.layer.scope_of_step[index]].bias for e in expected])
            assert (found is not None) == biases  # otherwise the comparisons would be of zeros
            found = torch.zeros_like(bias) if found is None else found.expand_as(bias)
            torch.testing.assert_close(found, bias, rtol=0, atol=1e-13)
            known = frozen.biases[index]
            known = torch.zeros_like(bias) if known is None else known.expand_as(bias)
            torch.testing.assert_close(known, bias, rtol=0, atol=1e-13)


@in_one_case("gap", [1e-1, 1e-2, 1e-3])
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


@in_one_case("elements", [1, 100, 1000])
def test_norms_in_chunks(elements, problem, monkeypatch):
    given = problem("post", n=9, batch=2)
    expected = given.solve()
    monkeypatch.setattr(parts, "CHUNK_ELEMENTS", elements)
    found = given.solve()
    for scope, norms in expected.norms.items():
        torch.testing.assert_close(found.norms[scope], norms, rtol=0, atol=1e-14)
