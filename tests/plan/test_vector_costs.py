"""Which input tokens pass a layer, and the model, together."""

from __future__ import annotations

from one_case import in_one_case

from normlens.plan.costs import COPIES, VectorSizes, group_sources


def sizes_of(n: int, batch: int) -> VectorSizes:
    """Vectors of 64 bytes, and 40 neurons of 4 bytes."""
    kept = batch * n * 64
    return VectorSizes(n, batch, kept, COPIES * kept + batch * n * 160)


@in_one_case("causal", [False, True])
@in_one_case("n", [1, 7, 96, 513])
@in_one_case("limit", [1, 1 << 16, 1 << 22, 1 << 40])
def test_every_source_passes_once_within_the_limit(n, limit, causal):
    sizes = sizes_of(n, 2)
    groups = group_sources(sizes, limit, causal, n)
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
    sizes = sizes_of(64, 1)
    (whole,), (group,) = (group_sources(sizes, 1 << 40, causal, 64) for causal in (False, True))
    assert (whole[0], group[0]) == ((0, 16), (0, 8))
    pairs = sum(count * (64 - first) for first, count in group)
    assert pairs <= 0.57 * 64 * 64
