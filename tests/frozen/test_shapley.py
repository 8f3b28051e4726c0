"""Sampled Shapley values against all orders of the players."""

from __future__ import annotations

import itertools

import torch
from one_case import in_one_case
from reference import largest_error, mixing_of, reference

import normlens
from normlens.frozen import norm_maps
from normlens.models.tiny import tiny_model

GATES = in_one_case("gated", [False, True])
BEHIND = ["ATTNRESLNFF-N", "ATTNRESLNFFRES-N", "ATTNRESLNFFRESLN-N"]
IDS = [3, 9, 27, 14, 5, 33, 8]


@GATES
def test_every_order_once_is_exact(gated, problem, monkeypatch):
    """With all orders instead of random ones, nothing is left to chance."""
    given = problem("post", n=3, gated=gated, activation="gelu")
    orders = itertools.cycle(itertools.permutations(range(4)))
    monkeypatch.setattr(
        norm_maps.torch, "randperm", lambda count, generator: torch.tensor(next(orders))
    )
    found = given.solve(rule="shapley", samples=24)
    expected = reference(given.layer, given.x[0], given.alpha[0], "shapley")
    for scope in found.norms:
        assert largest_error(found.norms[scope][0], expected.maps[scope]) < 1e-9, scope
        torch.testing.assert_close(mixing_of(found, scope)[0], expected.mixing[scope])


@in_one_case(
    ("order", "gated", "causal"),
    [("post", False, False), ("pre", True, True), ("both", False, False)],
)
def test_standard_error_is_the_spread_over_seeds(order, gated, causal, problem):
    """Of every norm, the diagonal and what bypasses the block included."""
    given = problem(order, n=4, gated=gated, causal=causal, activation="silu")
    samples, seeds = 48, 120
    runs = [given.solve(rule="shapley", samples=samples, seed=seed) for seed in range(seeds)]
    allowed = given.alpha[0].sum(0) > 0  # (i, j)
    for scope in runs[0].standard_error:
        norms = torch.stack([run.norms[scope][0] for run in runs])[:, allowed]
        reported = torch.stack([run.standard_error[scope][0] for run in runs])[:, allowed]
        ratio = reported.square().mean(0).sqrt() / norms.std(0)
        # A deviation that is estimated from 120 draws is known to 7 % only.
        assert (ratio > 0.75).all(), scope
        assert (ratio < 1.35).all(), scope
        assert 0.9 < ratio.mean() < 1.1, scope


def test_one_sample_has_no_standard_error(problem):
    """A single order says nothing about the spread, so its error must not be given as 0."""
    errors = problem("post", n=4).solve(rule="shapley", samples=1).standard_error
    for scope in BEHIND:
        assert not torch.isfinite(errors[scope][0]).any(), scope


def test_standard_error_belongs_to_scopes_behind_the_block(problem):
    given = problem("post", n=4)
    assert list(given.solve(rule="shapley", samples=4).standard_error) == BEHIND
    assert list(given.solve([BEHIND[1]], rule="shapley", samples=4).standard_error) == [BEHIND[1]]
    assert not given.solve(rule="ig").standard_error


@in_one_case("samples", [1, 2, 7])
@in_one_case("family", ["bert", "gpt2", "llama", "modernbert"])
def test_completeness_holds_however_few_orders_there_are(family, samples):
    lens = normlens.load(tiny_model(family))
    maps = lens.maps(input_ids=IDS, nonlinearity="shapley", samples=samples)
    assert 0 < maps.completeness < 1e-5


def test_the_seed_decides():
    lens = normlens.load(tiny_model("bert"))

    def draw(seed):
        return lens.maps(input_ids=IDS, nonlinearity="shapley", samples=4, seed=seed)["FF"]

    assert (draw(3) == draw(3)).all()
    assert (draw(3) != draw(4)).any()


@in_one_case("family", ["bert", "llama"])
def test_a_batch_draws_what_each_sequence_draws_alone(family):
    lens = normlens.load(tiny_model(family))
    batch = [IDS, IDS[:3], IDS[2:]]
    options = {"nonlinearity": "shapley", "samples": 4}
    for found, ids in zip(lens.maps(input_ids=batch, batch_size=3, **options), batch, strict=True):
        alone = lens.maps(input_ids=ids, **options)
        for scope in alone.scopes:
            assert largest_error(found[scope], alone[scope]) < 1e-6, scope
        for scope, error in alone.standard_error.items():
            assert largest_error(found.standard_error[scope], error) < 1e-4, scope
