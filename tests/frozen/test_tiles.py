"""Tiles of any size, both methods, and running out of memory: always the same numbers."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from layer_problems import decompose_layer
from one_case import in_one_case
from reference import largest_error, mixing_of, reference
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normlens.frozen import tiles
from normlens.frozen.feedforward import FrozenFeedForward
from normlens.plan.costs import Plan

LAYERS = [
    {"order": "post"},
    {"order": "pre", "causal": True},
    {"order": "both", "gated": True, "activation": "silu", "centred": False, "groups": 2},
    {"order": "bare"},
]
every_layer = in_one_case("settings", LAYERS, ids=[str(settings["order"]) for settings in LAYERS])


def use_plan(monkeypatch, method: str, sources: int, targets: int) -> None:
    monkeypatch.setattr(tiles, "choose_plan", lambda shape, limit: Plan(method, sources, targets))


def assert_equal(found, expected, tolerance: float) -> None:
    assert set(found.norms) == set(expected.norms)
    for scope in expected.norms:
        assert largest_error(found.norms[scope], expected.norms[scope]) <= tolerance, scope
        torch.testing.assert_close(mixing_of(found, scope), mixing_of(expected, scope))


@every_layer
@in_one_case("method", ["tiles", "matrices"])
@in_one_case(
    ("sources", "targets"), [(1, 1), (1, 7), (7, 1), (2, 3), (3, 2), (5, 4), (11, 11), (64, 64)]
)
def test_every_tile_size_and_method_gives_the_reference(
    settings, method, sources, targets, problem, monkeypatch
):
    given = problem(n=11, batch=2, **settings)
    use_plan(monkeypatch, method, sources, targets)
    found = given.solve()
    for index in range(2):
        expected = reference(given.layer, given.x[index], given.alpha[index])
        for scope, norms in found.norms.items():
            assert largest_error(norms[index], expected.maps[scope]) < 1e-9, scope
            torch.testing.assert_close(mixing_of(found, scope)[index], expected.mixing[scope])


@every_layer
@in_one_case("limit", [1, 5_000, 100_000])
def test_a_memory_limit_changes_no_number(settings, limit, problem):
    given = problem(n=17, dtype=torch.float32, **settings)
    assert_equal(given.solve(memory_limit=limit), given.solve(), 1e-6)


def test_padding_is_not_computed(problem):
    """A shorter sequence in a batch gives what it gives alone, whatever its padding holds."""
    given = problem("post", n=9, batch=2)
    x, alpha = given.x.clone(), given.alpha.clone()
    x[1, 5:] = 1e6
    alpha[1, :, :, 5:] = 0
    alpha[1, :, 5:] = 1e6
    together = decompose_layer(given.layer, x, alpha, [9, 5], given.layer.scopes)
    alone = type(given)(given.layer, x[1:, :5], alpha[1:, :, :5, :5]).solve()
    for scope, norms in alone.norms.items():
        assert largest_error(together.norms[scope][1, :5, :5], norms[0]) < 1e-12, scope


class Peak(TorchDispatchMode):
    """How many bytes the tensors made inside it take at most at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, list[int]] = {}  # storage → [tensors that view it, bytes]
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {
            value.untyped_storage()._cdata
            for value in tree_leaves((args, kwargs))
            if isinstance(value, torch.Tensor)
        }
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self._keep(value, storage._cdata, storage.nbytes(), storage._cdata in given)
        return out

    def _keep(self, tensor: torch.Tensor, key: int, size: int, is_view: bool) -> None:
        if key in self.live:
            self.live[key][0] += 1
        elif is_view:  # of a tensor that was there before
            return
        else:
            self.live[key] = [1, size]
            self.now += size
            self.peak = max(self.peak, self.now)
        weakref.finalize(tensor, self._drop, key)

    def _drop(self, key: int) -> None:
        self.live[key][0] -= 1
        if not self.live[key][0]:
            self.now -= self.live.pop(key)[1]


@in_one_case("gated", [False, True])
@in_one_case(("d", "m", "heads"), [(64, 256, 8), (64, 64, 2)])
@in_one_case(
    "chosen",
    [
        Plan("tiles", 32, 16),
        Plan("tiles", 16, 8),
        Plan("tiles", 8, 2),
        Plan("matrices", 32, 4),
        Plan("matrices", 8, 1),
    ],
    ids=lambda chosen: f"{chosen.method}-{chosen.sources}x{chosen.targets}",
)
def test_a_plan_takes_no_more_memory_than_it_says(chosen, d, m, heads, gated, problem, monkeypatch):
    """Otherwise a memory limit would not be one."""
    given = problem("post", n=32, d=d, m=m, heads=heads, gated=gated, dtype=torch.float32)
    real = tiles._run_sequence
    seen = []

    def watched(job, index, n, plan, *rest):
        _ = job.factors.values, job.formed_products  # are there already, whatever the plan
        with Peak() as peak:
            real(job, index, n, plan, *rest)
        seen.append(peak.peak)
        assert peak.peak <= plan.memory(job.shape(n, n))

    monkeypatch.setattr(tiles, "_run_sequence", watched)
    use_plan(monkeypatch, chosen.method, chosen.sources, chosen.targets)
    given.solve()
    assert seen[0] > 0


# Running out of memory ---------------------------------------------------------------------------


TILES = [(FrozenFeedForward, "tile"), (tiles, "_tile_by_matrices")]


@pytest.fixture
def failing_tiles(monkeypatch):
    """Tiles above a number of pairs run out of memory; returns the sizes that were tried."""

    def install(largest: int, error=torch.OutOfMemoryError, after: int = 0):
        tried = []
        for place, name in TILES:
            real = getattr(place, name)

            def guarded(*given, real=real):
                sizes = [each.stop - each.start for each in given if isinstance(each, slice)]
                tried.append(math.prod(sizes))
                if tried[-1] > largest and len(tried) > after:
                    raise error("out of memory: tried to allocate more than there is")
                return real(*given)

            monkeypatch.setattr(place, name, guarded)
        return tried

    return install


@every_layer
@in_one_case("method", ["tiles", "matrices"])
@in_one_case("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_tiles_are_halved_until_they_fit(
    settings, method, error, problem, failing_tiles, monkeypatch
):
    given = problem(n=11, **settings)
    expected = given.solve()
    use_plan(monkeypatch, method, 11, 5)
    tried = failing_tiles(6, error)
    assert_equal(given.solve(), expected, 1e-12)
    assert max(tried) > 6 >= tried[-1]


@every_layer
def test_what_was_done_before_running_out_is_not_counted_twice(
    settings, problem, failing_tiles, monkeypatch
):
    given = problem(n=11, **settings)
    expected = given.solve()
    use_plan(monkeypatch, "tiles", 4, 4)
    tried = failing_tiles(3, after=4)  # the first tiles succeed, then memory runs out
    assert_equal(given.solve(), expected, 1e-12)
    assert max(tried[:4]) > 3
