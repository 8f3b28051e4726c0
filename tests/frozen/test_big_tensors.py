"""The tensors that make other implementations run out of memory never exist."""

from __future__ import annotations

from typing import Any

import torch
from one_case import in_one_case
from reference import reference
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


class Watcher(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.where = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor) and value.numel() > self.largest:
                self.largest, self.where = value.numel(), f"{func} {tuple(value.shape)}"
        return out


@in_one_case("rule", ["ig", "ig-bias", "gradient", "shapley"])
@in_one_case("family", SIZES)
def test_no_tensor_has_a_vector_for_every_pair(family, rule):
    lens = normlens.load(tiny_model(family, **SIZES[family]))
    with Watcher() as watcher:
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
    with Watcher() as watcher:
        lens.maps(input_ids=IDS, layers=0)
    assert {plan.method for plan in used} == {method}
    assert watcher.largest < FORBIDDEN, watcher.where


@in_one_case("order", ["post", "pre"])
def test_the_watcher_sees_an_implementation_that_makes_them(order, problem):
    given = problem(order, n=N, d=D, m=M, heads=H)
    with Watcher() as watcher:
        reference(given.layer, given.x[0], given.alpha[0], "gradient")
    assert watcher.largest >= FORBIDDEN
    with Watcher() as watcher:
        given.solve()
    assert watcher.largest < FORBIDDEN, watcher.where


@in_one_case("family", SIZES)
def test_input_tokens_are_pushed_through_in_parts_that_a_limit_holds(family):
    lens = normlens.load(tiny_model(family, **SIZES[family]))
    limit = 200 << 10
    with Watcher() as watcher:
        maps = lens.maps(input_ids=IDS, origin="input", memory_limit=limit)
    assert maps["RES1"].shape == (2, N, N)
    # What does not grow with the sources is there, too: every head's weights.
    assert watcher.largest <= max(limit // 2 // 4, N * N * H), watcher.where
    assert watcher.largest < FORBIDDEN
