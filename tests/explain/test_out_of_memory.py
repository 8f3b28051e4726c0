"""Explanations that do not fit into memory: recordings make room, then batches are halved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from heads import headed

import normlens
from normlens.explain.explainer import Explainer

IDS = [[5, 17, 31, 8, 44], [9, 3, 3, 12, 6], [41, 2, 60, 7, 7]]


@pytest.fixture
def lens() -> normlens.Lens:
    return normlens.load(headed("gpt2", "CausalLM"))


def fail_while(monkeypatch: pytest.MonkeyPatch, is_full: Any) -> list[int]:
    """Memory is out while `is_full(batch)`; the sizes of the batches that were tried."""
    tried: list[int] = []
    real = Explainer._answers

    def guarded(self: Explainer, batch: Any, *rest: Any) -> Any:
        tried.append(len(batch))
        if is_full(batch):
            raise torch.OutOfMemoryError("out of memory")
        return real(self, batch, *rest)

    monkeypatch.setattr(Explainer, "_answers", guarded)
    return tried


def contributions(lens: normlens.Lens) -> list[np.ndarray]:
    found = lens.explain(input_ids=IDS, target=7, batch_size=3)
    return [np.asarray(one.contributions) for one in found]


def test_a_batch_that_does_not_fit_is_halved(
    lens: normlens.Lens, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = contributions(lens)
    tried = fail_while(monkeypatch, lambda batch: len(batch) > 1)
    for ours, theirs in zip(contributions(lens), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert tried == [3, 1, 2, 1, 1]
