"""Repeated calls and long texts on a GPU: replays and results that are sent have the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from one_case import in_one_case

import normlens
from normlens.gpu import transfer
from normlens.models.tiny import tiny_families, tiny_model
from normlens.pipeline import recordings
from normlens.results.maps import Maps

pytestmark = pytest.mark.gpu

IDS = [3, 9, 27, 14, 5, 33, 8]
OTHERS = [4, 8, 15, 16, 23, 42, 1]
CALLS = recordings.BEFORE + 2


def recorded(lens: normlens.Lens) -> int:
    return len(lens.recordings._recorded)


@in_one_case("family", tiny_families())
def test_replays_have_the_same_bits(family: str) -> None:
    model = tiny_model(family)
    lens = normlens.load(model, device="cuda")
    first = [lens.maps(input_ids=ids) for ids in (IDS, OTHERS)]
    for _ in range(CALLS):
        for ids, expected in zip((IDS, OTHERS), first, strict=True):
            assert lens.maps(input_ids=ids) == expected


def test_texts_of_different_lengths_share_recordings() -> None:
    lens, alone = (normlens.load(tiny_model("bert"), device="cuda") for _ in range(2))
    texts = [[(7 * k + 3 * n) % 40 + 1 for k in range(n)] for n in (3, 9, 5, 16, 12, 7)]
    for ids in texts * 2:
        found = lens.maps(input_ids=ids)
        alone.recordings.forget()
        assert found == alone.maps(input_ids=ids)
        assert found["ATTN-N"].shape[-1] == len(ids)
    assert recorded(lens) == 1


@in_one_case("options", [{}, {"heads": True}])
def test_batches_of_one_call_do_not_write_over_each_other(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch is replayed before the last one is packed up."""
    texts = [[(7 * k + 3 * t) % 40 + 1 for t in range(9)] for k in range(16)]
    model = tiny_model("bert")
    with monkeypatch.context() as never:
        never.setattr(recordings, "BEFORE", 1 << 30)
        expected = normlens.load(model, device="cuda").maps(
            input_ids=texts, batch_size=2, **options
        )
    lens = normlens.load(model, device="cuda")
    for _ in range(2):
        found = lens.maps(input_ids=texts, batch_size=2, **options)
        assert recorded(lens) == 2  # in turn
        for ours, theirs in zip(found, expected, strict=True):
            assert ours == theirs


def test_weights_may_change_in_place_or_be_replaced() -> None:
    model = tiny_model("bert").to("cuda")
    lens = normlens.load(model)
    for _ in range(CALLS):
        lens.maps(input_ids=IDS)
    weight = model.encoder.layer[0].output.dense.weight
    with torch.no_grad():
        weight.mul_(1.5)
    assert lens.maps(input_ids=IDS) == normlens.load(model).maps(input_ids=IDS)
    weight.data = weight.data.clone() * 2
    assert lens.maps(input_ids=IDS) == normlens.load(model).maps(input_ids=IDS)


@in_one_case("family", ["bert", "gpt2", "mistral", "t5", "deepseek_v3"])
@in_one_case("map_dtype", ["auto", "float16"])
def test_maps_that_go_to_a_file_have_the_same_bits(
    family: str, map_dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: dict[str, Any] = {"input_ids": IDS * 5}
    if family == "t5":
        ids["decoder_input_ids"] = OTHERS
    lens = normlens.load(tiny_model(family), device="cuda")
    expected = lens.maps(**ids, heads=True, map_dtype=map_dtype)
    monkeypatch.setattr(transfer, "ROWS", 8)
    monkeypatch.setattr(transfer, "SLOT", 1 << 12)
    monkeypatch.setattr(transfer, "_SLOTS", transfer._Slots())
    path = tmp_path / "maps.safetensors"
    for _ in range(CALLS):
        found = lens.maps(**ids, heads=True, map_dtype=map_dtype, out=path, overwrite=True)
        assert found == expected
    assert Maps.load(path) == expected
    assert recorded(lens) == 0
