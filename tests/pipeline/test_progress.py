"""A bar of layers, for those who watch and those who ask for it."""

from __future__ import annotations

import pytest
import torch
from one_case import in_one_case

import normlens
from normlens.pipeline import batches

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
