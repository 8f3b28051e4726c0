"""One layer: the reference under every rule, invariants, and what a layer may consist of."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from layer_problems import decompose_layer
from one_case import in_one_case
from reference import largest_error, mixing_of, reference

from normlens.layers import (
    Attention,
    Branch,
    FeedForward,
    Layer,
    Linear,
    Projection,
    Reach,
    Residual,
)
from normlens.options import AnalysisOptions

ORDERS = ["post", "pre", "parallel", "both", "bare", "branch-normed"]
RULES = ["ig", "ig-bias", "gradient"]
every_order = in_one_case("order", ORDERS)


def assert_reference(given, rule: str = "ig", tolerance: float = 1e-9, **settings) -> None:
    found = given.solve(rule=rule, **settings)
    for index in range(len(given.x)):
        expected = reference(given.layer, given.x[index], given.alpha[index], rule)
        assert set(found.norms) == set(expected.maps)
        for scope in found.norms:
            assert largest_error(found.norms[scope][index], expected.maps[scope]) <= tolerance
            torch.testing.assert_close(
                mixing_of(found, scope)[index].double(),
                expected.mixing[scope],
                rtol=0,
                atol=max(tolerance, 1e-12),
            )


@every_order
@in_one_case("rule", RULES)
@in_one_case("gated", [False, True])
def test_every_order_of_components(order, rule, gated, problem):
    assert_reference(problem(order, gated=gated, activation="silu", batch=2), rule)


@every_order
@in_one_case("causal", [False, True])
@in_one_case("n", [1, 2, 3, 30])
def test_lengths(order, causal, n, problem):
    assert_reference(problem(order, n=n, causal=causal))


@in_one_case("activation", ["relu", "gelu", "silu", "tanh", "sigmoid", "relu2"])
@in_one_case("rule", RULES)
@in_one_case("gated", [False, True])
def test_activations_and_rules(activation, rule, gated, problem):
    assert_reference(problem("post", activation=activation, gated=gated), rule)


# Parts of the request -----------------------------------------------------------------------------


@every_order
def test_each_scope_alone_is_the_same(order, problem):
    given = problem(order)
    whole = given.solve()
    for scope in given.layer.scopes:
        alone = given.solve([scope])
        assert set(alone.norms) == set(alone.mixing) == {scope}
        torch.testing.assert_close(alone.norms[scope], whole.norms[scope], rtol=0, atol=0)


@every_order
def test_head_maps_without_any_scope(order, problem):
    given = problem(order)
    expected = reference(given.layer, given.x[0], given.alpha[0]).head_maps
    found = given.solve([], heads=True).head_maps
    for scope in ("ATTN-W", "ATTN-N"):
        assert largest_error(found[scope][0], expected[scope]) < 1e-12


@in_one_case("scale", [1.0, 1.01])
def test_completeness_is_measured_against_the_real_vectors(scale, problem):
    """It is the worst token's ‖parts + bias − y‖ / ‖y‖, at every step whose vector is known."""
    given = problem("post")
    expected = reference(given.layer, given.x[0], given.alpha[0]).parts
    real = {
        index: scale * expected[scope].total[None]
        for index, scope in given.layer.scope_of_step.items()
    }
    n = given.x.shape[1]
    found = decompose_layer(
        given.layer, given.x, given.alpha, [n], given.layer.scopes, AnalysisOptions(), real
    ).completeness
    assert set(found) == set(expected)
    for error in found.values():
        assert error == pytest.approx(1 - 1 / scale, abs=1e-12)


@in_one_case("value", [float("nan"), float("inf")])
def test_vectors_that_are_not_finite_are_never_complete(value, problem):
    given = problem("post")
    real = {1: torch.full_like(given.x, value)}
    n = given.x.shape[1]
    found = decompose_layer(
        given.layer, given.x, given.alpha, [n], ["ATTN-N"], AnalysisOptions(), real
    )
    assert found.completeness["ATTN-N"] == float("inf")


def test_completeness_looks_at_real_tokens_only(problem):
    given = problem("post", n=6)
    total = reference(given.layer, given.x[0], given.alpha[0]).parts["ATTN-N"].total[None]
    total[:, 4:] = 1e9
    found = decompose_layer(given.layer, given.x, given.alpha, [4], ["ATTN-N"], real={1: total})
    assert found.completeness["ATTN-N"] < 1e-12


# Invariants ---------------------------------------------------------------------------------------


@every_order
@in_one_case("rule", [*RULES, "shapley"])
def test_permuting_tokens_permutes_maps(order, rule, problem):
    given = problem(order, n=7)
    order_of_tokens = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    moved = replace(
        given,
        x=given.x[:, order_of_tokens],
        alpha=given.alpha[:, :, order_of_tokens][..., order_of_tokens],
    )
    settings = {"rule": rule}
    if rule == "shapley":
        # The sampled orders are of positions; with a linear block every order is the same.
        given = problem(order, n=7, activation="linear")
        moved = replace(moved, layer=given.layer)
        settings["samples"] = 2
    expected, found = given.solve(**settings), moved.solve(**settings)
    for scope in expected.norms:
        permuted = expected.norms[scope][:, order_of_tokens][..., order_of_tokens]
        assert largest_error(found.norms[scope], permuted) < 1e-11, scope
        torch.testing.assert_close(
            mixing_of(found, scope), mixing_of(expected, scope)[:, order_of_tokens]
        )


def test_a_linear_block_is_a_matrix(problem):
    """Without a nonlinearity every rule gives ``F W_up W_down``."""
    given = problem("bare", activation="linear")
    ff = given.layer.feed_forward
    parts = reference(given.layer, given.x[0], given.alpha[0]).parts["ATTN-N"].owned
    expected = (parts @ ff.up.weight @ ff.down.weight).norm(dim=-1)
    for rule in [*RULES, "shapley"]:
        found = given.solve(rule=rule, samples=3).norms["ATTNFF-N"][0]
        assert largest_error(found, expected) < 1e-12, rule


def test_values_by_hand():
    """Two tokens, one head, no norm: parts that can be added up on paper."""
    one = torch.eye(2, dtype=torch.float64)
    attention = Attention(Linear(one), Linear(one, torch.tensor([0.0, 7.0]).double()), 1, 1)
    layer = Layer([Branch(), attention, Residual()])
    x = torch.tensor([[[3.0, 4.0], [0.0, 2.0]]], dtype=torch.float64)
    alpha = torch.tensor([[[[0.5, 0.5], [0.25, 0.75]]]], dtype=torch.float64)
    found = decompose_layer(layer, x, alpha, [2], layer.scopes)
    expected = {
        "ATTN-W": [[0.5, 0.5], [0.25, 0.75]],
        "ATTNRES-W": [[0.75, 0.25], [0.125, 0.875]],
        "ATTN-N": [[2.5, 1.0], [1.25, 1.5]],
        "ATTNRES-N": [[7.5, 1.0], [1.25, 3.5]],
    }
    for scope, rows in expected.items():
        torch.testing.assert_close(found.norms[scope][0], torch.tensor(rows).double())
    mixing = {"ATTN-W": [0.5, 0.25], "ATTNRES-W": [0.25, 0.125], "ATTNRES-N": [2 / 17, 5 / 19]}
    for scope, ratios in mixing.items():
        torch.testing.assert_close(mixing_of(found, scope)[0], torch.tensor(ratios).double())


def test_mixing_is_the_norm_of_the_sum():
    """Two other tokens that cancel each other mix nothing, however large each of them is."""
    one = torch.eye(2, dtype=torch.float64)
    layer = Layer([Attention(Linear(one), Linear(one), 1, 1)])
    x = torch.tensor([[[1.0, 0.0], [0.0, 5.0], [0.0, -5.0]]], dtype=torch.float64)
    alpha = torch.full((1, 1, 3, 3), 1 / 3, dtype=torch.float64)
    found = decompose_layer(layer, x, alpha, [3], layer.scopes)
    assert float(mixing_of(found, "ATTN-N")[0, 0]) == pytest.approx(0, abs=1e-15)
    assert float(found.norms["ATTN-N"][0, 0, 1]) == pytest.approx(5 / 3)


# What a layer may consist of ----------------------------------------------------------------------


def parts_of_a_layer():
    one = Linear(torch.eye(2))
    return Attention(one, one, 1, 1), FeedForward(one, one, "relu")


def test_several_blocks_stand_behind_one_attention():
    attention, ff = parts_of_a_layer()
    cross = replace(attention, source="encoder")
    assert Layer([attention, ff, ff]).by_source
    assert Layer([attention, ff, Projection(ff.up)]).by_source
    assert not Layer([Projection(ff.up), attention, ff]).by_source
    with pytest.raises(ValueError, match="one Attention and no Experts"):
        Layer([attention, cross, ff, ff])


def test_scopes_follow_the_components(problem):
    assert problem("post").layer.scopes == (
        "ATTN-W",
        "ATTNRES-W",
        "ATTN-N",
        "ATTNRES-N",
        "ATTNRESLN-N",
        "ATTNRESLNFF-N",
        "ATTNRESLNFFRES-N",
        "ATTNRESLNFFRESLN-N",
    )
    assert problem("pre").layer.component_sequence == "(LN) ATTN RES LN FF RES"
    assert problem("parallel").layer.component_sequence == "(LN) ATTN ∥ (LN) FF RES"


@in_one_case(("back", "ahead"), list(itertools.product([None, 0, 2], repeat=2)))
def test_reach(back, ahead):
    n = 7
    mask = Reach(back, ahead).mask(n)
    for i, j in itertools.product(range(n), repeat=2):
        seen = (back is None or j >= i - back) and (ahead is None or j <= i + ahead)
        assert bool(mask[i, j]) == seen
    for length in (1, 2, n):
        assert Reach(back, ahead).pairs(length) == int(Reach(back, ahead).mask(length).sum())


@in_one_case(("back", "ahead"), list(itertools.product([None, 0, 2], repeat=2)))
def test_reach_of_a_block_of_targets_covers_each_of_them(back, ahead):
    n = 7
    reach = Reach(back, ahead)
    for first, last in itertools.combinations(range(n + 1), 2):
        start, stop = reach.sources(first, last, n)
        seen = reach.mask(n)[first:last].any(0).nonzero().flatten()
        assert (start, stop) == (int(seen.min()), int(seen.max()) + 1)
