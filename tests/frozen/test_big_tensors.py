"""The tensors that make other implementations run out of memory never exist."""

from __future__ import annotations

from largest_tensor import LargestTensor
from one_case import in_one_case
from reference import reference

import normlens
from normlens.frozen import tiles
from normlens.models.tiny import tiny_model
from normlens.plan import costs as plans

N, D, M, H = 96, 16, 40, 4
FORBIDDEN = N * N * min(D, M)  # at most n·n·d, n·n·m and n·n·H·d alike
IDS = [3 + index % 60 for index in range(N)]
SIZES = {
    "bert": {"max_position_embeddings": N, "intermediate_size": M},
    "gpt2": {"n_positions": N, "n_inner": M},
    "gpt_neox": {"max_position_embeddings": N, "intermediate_size": M},
    "llama": {"max_position_embeddings": N, "intermediate_size": M},
    "gemma2": {"max_position_embeddings": N, "intermediate_size": M},
}


@in_one_case("rule", ["ig", "ig-bias", "gradient", "shapley"])
@in_one_case("family", SIZES)
def test_no_tensor_has_a_vector_for_every_pair(family, rule):
    lens = normlens.load(tiny_model(family, **SIZES[family]))
    with LargestTensor() as watcher:
        maps = lens.maps(input_ids=IDS, layers=0, heads=True, nonlinearity=rule, samples=2)
    assert maps["ATTN-N"].shape == (1, N, N)
    assert watcher.largest < FORBIDDEN, watcher.where
    assert watcher.largest >= N * N * H  # the weights of every head are there


@in_one_case("family", ["bert", "llama"])
@in_one_case("method", ["tiles", "matrices"])
def test_neither_method_makes_one(family, method, monkeypatch):
    monkeypatch.setattr(plans, "cheaper_method", lambda shape: method)
    used = []
    choose = tiles.choose_plan
    monkeypatch.setattr(tiles, "choose_plan", lambda *args: used.append(choose(*args)) or used[-1])
    lens = normlens.load(tiny_model(family, **SIZES[family]))
    with LargestTensor() as watcher:
        lens.maps(input_ids=IDS, layers=0)
    assert {plan.method for plan in used} == {method}
    assert watcher.largest < FORBIDDEN, watcher.where


@in_one_case("order", ["post", "pre"])
def test_the_watcher_sees_an_implementation_that_makes_them(order, problem):
    given = problem(order, n=N, d=D, m=M, heads=H)
    with LargestTensor() as watcher:
        reference(given.layer, given.x[0], given.alpha[0], "gradient")
    assert watcher.largest >= FORBIDDEN
    with LargestTensor() as watcher:
        given.solve()
    assert watcher.largest < FORBIDDEN, watcher.where


@in_one_case("family", SIZES)
def test_input_tokens_are_pushed_through_in_parts_that_a_limit_holds(family):
    lens = normlens.load(tiny_model(family, **SIZES[family]))
    limit = 200 << 10
    with LargestTensor() as watcher:
        maps = lens.maps(input_ids=IDS, origin="input", memory_limit=limit)
    assert maps["RES1"].shape == (2, N, N)
    # What does not grow with the sources is there, too: every head's weights.
    assert watcher.largest <= max(limit // 2 // 4, N * N * H), watcher.where
    assert watcher.largest < FORBIDDEN
