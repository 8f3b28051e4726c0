"""The cost of head products, and whether forming them pays."""

from __future__ import annotations

import pytest

from normlens.plan.costs import head_product_elements, head_products_pay

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies


@given(
    n=st.integers(1, 2000),
    heads=st.integers(1, 64),
    d_head=st.integers(1, 256),
    d=st.integers(1, 4096),
    m=st.integers(1, 8192),
    k=st.integers(1, 2),
)
def test_head_products_pay_where_they_take_fewer_operations(n, heads, d_head, d, m, k):
    formed = 2 * (d + n) * head_product_elements(heads, d_head, m, k)
    from_vectors = 2 * n * head_product_elements(heads, d, m, k)
    assert head_products_pay(d_head, d, n) == (formed < from_vectors)


def test_their_size_is_that_of_what_is_formed():
    assert head_product_elements(heads=3, d_head=4, m=5, projections=2) == 2 * 3 * 4 * 5
