"""The cost model that cuts the feed-forward stage into tiles."""

from __future__ import annotations

import pytest

from normlens.plan.costs import Plan, Shape, choose_plan

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies


def bert_base(n: int, causal: bool = False) -> Shape:
    pairs = n * (n + 1) // 2 if causal else n * n
    return Shape(n=n, pairs=pairs, d=768, m=3072, heads=12, projections=1)


def crossover(causal: bool) -> int:
    """The shortest input for which matrices are chosen."""
    return next(n for n in range(64, 8192, 8) if method(bert_base(n, causal)) == "matrices")


def method(shape: Shape) -> str:
    return choose_plan(shape, None).method


def test_matrices_pay_off_where_the_count_of_operations_says():
    """``n > d m / (m − d)``, about 1024 for BERT-base, and twice that under a causal mask."""
    assert crossover(causal=False) == pytest.approx(768 * 3072 / (3072 - 768), rel=0.05)
    assert crossover(causal=True) == pytest.approx(2 * crossover(causal=False), rel=0.05)


shapes = st.builds(
    lambda n, share, d, m, heads, projections, itemsize: Shape(
        n, max(n, int(n * n * share)), d, m, heads, projections, itemsize
    ),
    n=st.integers(1, 5000),
    share=st.floats(0.01, 1),
    d=st.integers(1, 2048),
    m=st.integers(1, 8192),
    heads=st.integers(1, 64),
    projections=st.integers(1, 2),
    itemsize=st.sampled_from([4, 8]),
)


@given(shape=shapes, limit=st.integers(1, 1 << 34))
def test_the_limit_holds_unless_nothing_is_left_to_halve(shape, limit):
    plan = choose_plan(shape, limit)
    assert plan.memory(shape) <= limit or plan.halved() is None


@given(sources=st.integers(1, 4096), targets=st.integers(1, 64))
def test_halving_ends_at_a_single_pair(sources, targets):
    plan, steps = Plan("tiles", sources, targets), 0
    while (smaller := plan.halved()) is not None:
        assert smaller.sources * smaller.targets < plan.sources * plan.targets
        plan, steps = smaller, steps + 1
    assert (plan.sources, plan.targets) == (1, 1)
    assert steps <= 20
