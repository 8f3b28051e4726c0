"""What products, vectors and batches cost."""

from __future__ import annotations

import pytest
import torch
from one_case import in_one_case

import normlens
from normlens.models.tiny import tiny_model
from normlens.options import AnalysisOptions
from normlens.pipeline.batches import affordable
from normlens.plan import costs
from normlens.plan.costs import (
    COPIES,
    VectorSizes,
    affordable_batch,
    group_sources,
    head_product_elements,
    head_products_pay,
)
from normlens.plan.estimate import Estimate

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


GPU = torch.device("cuda")


@pytest.fixture
def memory(monkeypatch):
    """A device with so many bytes."""
    return lambda size: monkeypatch.setattr(costs, "device_memory", lambda device: size)


@pytest.fixture
def affordable_sequences(monkeypatch):
    """How many sequences of so many bytes each fit beside so many bytes of weights."""

    def count(device: torch.device, weights: int, each: int) -> int:
        monkeypatch.setattr(costs, "sequence_memory", lambda *_: each)
        return affordable_batch(device, normlens.load(tiny_model("bert")).layers, weights, 8, 4)

    return count


def test_a_batch_takes_a_quarter_of_what_the_weights_leave(memory, affordable_sequences):
    memory(1000 + 4 * 700)
    assert affordable_sequences(GPU, 1000, 100) == 7
    assert affordable_sequences(GPU, 1000, 101) == 6


def test_a_batch_has_one_sequence_at_least_and_sixty_four_at_most(memory, affordable_sequences):
    memory(1000)
    assert affordable_sequences(GPU, 5000, 100) == 1
    assert affordable_sequences(GPU, 0, 1) == 64


def test_a_cpu_takes_one_at_a_time(memory, affordable_sequences):
    memory(1 << 50)
    assert affordable_sequences(torch.device("cpu"), 0, 1) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_estimate_knows_the_batch_of_the_lens(family, dtype, memory, monkeypatch):
    lens = normlens.load(tiny_model(family).to(dtype))
    monkeypatch.setattr(type(lens), "device", GPU)
    found = []
    for n in (1, 8, 30, 200):
        for size in (1 << 16, 1 << 20, 1 << 24):
            memory(size)
            found.append(affordable(lens, n))
            result = Estimate(lens, n, AnalysisOptions(), device="cuda")
            assert result.automatic_batch() == found[-1]
    assert len(set(found)) >= 4
