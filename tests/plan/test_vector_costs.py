"""Which input tokens pass a layer, and the model, together."""

from __future__ import annotations

import pytest

from normlens.plan.costs import VectorSizes, chunk_sources, group_sources


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 7, 96, 513])
@pytest.mark.parametrize("limit", [1, 1 << 16, 1 << 22, 1 << 40])
def test_every_source_passes_once_within_the_limit(n, limit, causal):
    sizes = VectorSizes(n, 2, 16, 40, 4)
    groups = group_sources(sizes, limit, causal)
    sources = [first + k for group in groups for first, count in group for k in range(count)]
    assert sources == list(range(n))
    if limit >= sizes.least:
        largest = max(count for group in groups for _, count in group)
        assert 2 * largest * sizes.passing <= limit
        for group in groups:
            targets = [n - first if causal else n for first, _ in group]
            held = sum(c * sizes.kept * t // n for (_, c), t in zip(group, targets, strict=True))
            assert 2 * held <= limit
    if limit == 1 << 40:
        assert len(groups) == 1


def test_causal_texts_are_cut_so_that_half_of_the_pairs_are_left_out():
    sizes = VectorSizes(64, 1, 16, 40, 4)
    whole, cut = (chunk_sources(sizes, 1 << 40, causal) for causal in (False, True))
    assert (whole, cut) == (16, 8)
    (group,) = group_sources(sizes, 1 << 40, True)
    pairs = sum(count * (64 - first) for first, count in group)
    assert pairs <= 0.57 * 64 * 64
