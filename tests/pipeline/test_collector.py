"""Results of layers as they come in: masks, precisions, a bar."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_case import in_one_case

import normlens
from normlens.frozen.norm_maps import LayerMaps
from normlens.layers import Reach
from normlens.options import AnalysisOptions
from normlens.pipeline import batches
from normlens.pipeline.call import Stack
from normlens.pipeline.collector import Collector, allowed_pairs

CAUSAL, NEAR, ALL = Reach(ahead=0), Reach(back=1, ahead=1), Reach()


@in_one_case("others", [0, 2])
@in_one_case("reaches", [[CAUSAL] * 3, [CAUSAL, NEAR, ALL], [ALL]])
def test_masks_are_those_of_the_reaches(reaches: list[Reach], others: int) -> None:
    found = allowed_pairs([(reach, True) for reach in reaches], 5, others)
    assert found.shape == (len(reaches), 5, others + 5)
    for mask, reach in zip(found, reaches, strict=True):
        assert mask[:, :others].all()
        assert np.array_equal(mask[:, others:], reach.mask(5).numpy())


def test_like_layers_share_their_mask() -> None:
    found = allowed_pairs([(CAUSAL, False)] * 4, 5)
    assert found.strides[0] == 0
    mixed = allowed_pairs([(CAUSAL, False), (ALL, False)], 5)
    assert mixed.strides[0] > 0


def test_the_kernels_precision_is_kept_where_some_layers_have_none(tiny):
    """Experts run in PyTorch, whose float32 is not what the other layers' errors are judged by."""
    lens = normlens.load(tiny("deepseek_v3", torch.float32))
    stack = Stack(lens.layers, [0, 1], [], AnalysisOptions())
    collector = Collector(lens, stack, lens.encode(input_ids=[1, 2, 3]))
    kernel = LayerMaps(precision="tf32", kernel_errors={"sum": torch.tensor(5e-4)})
    collector.add(kernel, 0, lens.layers[0])
    collector.add(LayerMaps(precision="float32"), 1, lens.layers[1])
    assert collector.computed.precision == "tf32"


IDS = [3, 9, 27, 14, 5, 33, 8]


@pytest.fixture
def lens(tiny):
    return normlens.load(tiny("albert", torch.float32))  # three layers


def test_nothing_is_shown_where_nobody_looks(lens, capsys):
    lens.maps(input_ids=IDS)
    assert capsys.readouterr() == ("", "")


def test_a_bar_is_shown_to_those_who_ask(lens, capsys):
    expected = lens.maps(input_ids=IDS)
    assert lens.maps(input_ids=IDS, progress=True) == expected
    out, err = capsys.readouterr()
    assert out == ""
    assert "layers" in err
    assert "3/3" in err


@in_one_case("seconds", [0.0, 600.0])
def test_watchers_see_a_bar_of_work_that_takes_long(seconds, lens, capsys, monkeypatch):
    monkeypatch.setattr(batches, "_is_watched", lambda: True)
    monkeypatch.setattr(batches, "DELAY", seconds)
    lens.maps(input_ids=IDS)
    assert ("layers" in capsys.readouterr().err) == (seconds == 0)
    lens.maps(input_ids=IDS, progress=False)
    assert capsys.readouterr().err == ""


def test_calls_on_a_gpu_are_not_slowed_by_a_bar(monkeypatch):
    monkeypatch.setattr(batches, "_is_watched", lambda: True)
    with batches.layers_shown(None, "cuda") as advance:
        assert advance is None
    with batches.layers_shown(None, "cpu") as advance:
        assert isinstance(advance, batches.LayerBar)
