"""Factored parts: sums, norms from Gram matrices, sources of another sequence in blocks."""

from __future__ import annotations

from dataclasses import replace

import torch
from one_case import in_one_case
from reference import largest_error, reference
from torch.utils.flop_counter import FlopCounterMode

from normlens.frozen import parts
from normlens.frozen.activations import Linearised
from normlens.frozen.attention import FrozenAttention
from normlens.frozen.feedforward import FrozenFeedForward
from normlens.frozen.layer import freeze
from normlens.frozen.parts import Factors, Parts, State
from normlens.frozen.stage import Squares
from normlens.frozen.tiles import Job, feed_forward_norms
from normlens.layers import FeedForward as Block
from normlens.layers import Layer, Linear, Reach


def frozen(given) -> FrozenAttention:
    return FrozenAttention.at(given.layer.attention, given.x, given.alpha, given.layer.reach)


@in_one_case("groups", [1, 2, 4])
@in_one_case("biases", [False, True])
def test_attention_gives_the_sums_of_its_parts(groups, biases, problem):
    given = problem("post", groups=groups, biases=biases, batch=2)
    found = frozen(given).on_parts(Parts(given.x))
    for index in range(2):
        expected = reference(given.layer, given.x[index], given.alpha[index]).parts["ATTN-N"]
        own = expected.owned.diagonal().T  # (i, d)
        assert largest_error(found.own[index], own) < 1e-12
        assert largest_error(found.mixed[index], expected.owned.sum(1) - own) < 1e-12
        bias = expected.bias if found.bias is None else found.bias.expand_as(expected.bias)
        torch.testing.assert_close(bias, expected.bias, rtol=0, atol=1e-15)


def test_attention_sums_cost_no_more_than_the_attention_itself(problem):
    """Three products with d×d weights and one with α: heads are mixed before ``W_O``."""
    n, d = 40, 16
    given = problem("post", n=n, d=d, heads=4, biases=False)
    with FlopCounterMode(display=False) as counted:
        attention = frozen(given)
        _ = attention.output
        attention.on_parts(Parts(given.x))
    assert counted.get_total_flops() == 3 * 2 * n * d * d + 2 * n * n * d


B, H, E, D, M = 2, 3, 4, 10, 14


def factors(n: int, sources: int, lengths: tuple[int, ...]) -> Factors:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = draw(B, sources, n, H).abs()
    for index, length in enumerate(lengths):
        weights[index, length:] = 0
    values, basis = draw(B, sources, H, E), draw(H, E, D)
    scale = draw(B, n).abs()
    return Factors(weights, scale, values, basis, Reach(), "encoder", lengths)


@in_one_case(("n", "lengths"), [(4, (9, 2)), (9, (4, 3)), (5, (5, 1)), (1, (3, 2))])
def test_blocks_have_the_norms_and_sums_of_the_whole(n, lengths):
    given = factors(n, max(lengths), lengths)
    targets = (n, max(1, n - 2))
    squares = Squares.of(given, targets)
    cut = squares.factors(given)
    assert cut.weights.shape[1:3] == (n, n)
    assert all(length <= n for length in squares.block_lengths)
    torch.testing.assert_close(squares.norms(cut.norms()), given.norms())
    whole = cut.sum_of_sources().unflatten(0, (B, -1)).sum(1)
    torch.testing.assert_close(whole, given.sum_of_sources())
    parts = torch.einsum("bjih,bjhd,bi->bijd", given.weights, given.values, given.scale)
    torch.testing.assert_close(given.sum_of_sources(), parts.sum(2))
    torch.testing.assert_close(given.norms(), parts.norm(dim=-1))


@in_one_case(("n", "lengths"), [(4, (9, 2)), (9, (4, 3))])
def test_a_job_in_blocks_has_the_result_of_the_whole(n, lengths):
    given = factors(n, max(lengths), lengths)
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    block = Block(Linear(draw(D, M)), Linear(draw(M, D)), "gelu")
    neurons = Linearised((draw(B, n, M),), draw(B, n, M), None)
    job = Job(FrozenFeedForward(block, neurons), given, "FF-N", {})
    targets = [n, n]
    squares = Squares.of(given, targets)
    cut = squares.job(job)
    found = squares.joined(feed_forward_norms(cut, squares.block_lengths))
    expected = feed_forward_norms(job, targets)
    torch.testing.assert_close(found.norms["FF-N"], expected.norms["FF-N"])
    torch.testing.assert_close(found.mixed, expected.mixed)
    for each in (job, cut):
        mixed = each.block.linear(each.factors.sum_of_sources())
        whole = mixed.unflatten(0, (B, -1)).sum(1)
        torch.testing.assert_close(whole, expected.mixed)
    torch.testing.assert_close(cut.block.output, squares.repeated(job.block.output))


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
