"""Memory limits that cannot be kept are refused before anything runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from one_case import in_one_case

import normlens
from normlens.errors import MemoryLimitError
from normlens.models.tiny import tiny_model
from normlens.options import parse_bytes
from normlens.pipeline import call
from normlens.plan.costs import Shape, choose_plan, least_memory

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies
IDS = [3, 9, 27, 14, 5, 33, 8]


def needed(lens: normlens.Lens, **options: Any) -> int:
    """The least limit that a refusal names."""
    with pytest.raises(MemoryLimitError, match="the memory limit of 1 bytes is too low") as raised:
        lens.maps(input_ids=IDS, memory_limit=1, **options)
    found = re.search(r"too low for 7 tokens: .* needs (\S+);", str(raised.value))
    assert found, raised.value
    return parse_bytes(found[1]) or 0


@in_one_case("rule", ["ig", "shapley"])
@in_one_case("family", ["bert", "llama"])
def test_what_is_named_suffices_and_less_does_not(family: str, rule: str) -> None:
    lens = normlens.load(tiny_model(family, dtype=torch.float32))
    options = {"nonlinearity": rule, "samples": 2}
    least = needed(lens, **options)
    lens.maps(input_ids=IDS, memory_limit=least, **options)
    with pytest.raises(MemoryLimitError):
        lens.maps(input_ids=IDS, memory_limit=int(0.9 * least), **options)


def test_the_model_does_not_run_before_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = normlens.load(tiny_model("bert"))

    def ran(*_: Any) -> None:
        raise AssertionError("the model ran")

    monkeypatch.setattr(call, "run_traced", ran)
    needed(lens)
    needed(lens, scopes="ATTN", statistics=True)


def test_scopes_before_the_block_need_no_tiles() -> None:
    lens = normlens.load(tiny_model("bert"))
    lens.maps(input_ids=IDS, memory_limit=1, scopes=["ATTN", "LN1"])
    parallel = normlens.load(tiny_model("gpt_neox"))
    assert parallel.layers[0].feed_forward is None
    parallel.maps(input_ids=IDS, memory_limit=1)


@given(
    n=st.integers(1, 4000),
    d=st.integers(1, 2048),
    m=st.integers(1, 8192),
    heads=st.integers(1, 64),
    projections=st.integers(1, 2),
)
def test_the_plan_keeps_the_least_limit(
    n: int, d: int, m: int, heads: int, projections: int
) -> None:
    shape = Shape(n, n * n, d, m, heads, projections)
    least = least_memory(shape, "ig")
    plan = choose_plan(shape, least)
    assert plan.memory(shape) <= least
    assert plan.method == "matrices" or plan.sources >= min(8, n)
    assert plan.method == "tiles" or plan.sources == n
