"""How many sequences are run together: the lens and the estimate ask the same model."""

from __future__ import annotations

import pytest
import torch

import normlens
from normlens.models.tiny import tiny_model
from normlens.options import AnalysisOptions
from normlens.pipeline.batches import affordable
from normlens.plan import costs
from normlens.plan.costs import affordable_batch, sequence_memory
from normlens.plan.estimate import Estimate

GPU = torch.device("cuda")


@pytest.fixture
def memory(monkeypatch):
    """A device with so many bytes."""
    return lambda size: monkeypatch.setattr(costs, "device_memory", lambda device: size)


def test_a_sequence_takes_its_weights_values_and_vectors():
    n, heads, d = 512, 12, 768
    assert sequence_memory(n, heads, d, 4) == 4 * (4 * heads * n * n + (3 * heads + 12) * n * d)


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
