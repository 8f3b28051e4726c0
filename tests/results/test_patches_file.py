"""Grids and pictures in files, whole, and whatever somebody has altered in them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from crafted_files import save_crafted
from one_case import in_one_case
from picture_examples import classifier, processor, scene
from safetensors import safe_open

import normlens
from normlens.errors import MapsFileError


@pytest.fixture(scope="module")
def results():
    lens = normlens.load(classifier(), processor())
    return {"maps": lens.maps(scene()), "why": lens.explain(scene(), target=1)}


@in_one_case("kind", ["maps", "why"])
def test_the_grid_and_the_picture_come_back(kind, results, tmp_path):
    saved = results[kind]
    found = normlens.open(saved.save(tmp_path / "it.safetensors"))
    assert found == saved
    assert found.grid == saved.grid
    assert found.grid.picture.dtype == np.uint8


def test_maps_without_a_picture_keep_their_grid(results, tmp_path):
    plain = results["maps"].without_special_tokens()
    found = normlens.open(plain.save(tmp_path / "plain.safetensors"))
    assert found.grid.first == 0
    assert found == plain


@in_one_case("kind", ["maps", "why"])
@in_one_case(
    ("change", "message"),
    [
        ({"rows": 4}, "12 patches from token 1 on, of 10"),
        ({"rows": 0}, "0 patches"),
        ({"first": -1}, "'grid/first' is not int"),
        ({"columns": "3"}, "'grid/columns' is not int"),
        (None, "'grid/picture' is no array"),
    ],
)
def test_altered_grids_are_refused(kind, change, message, results, tmp_path):
    path = results[kind].save(tmp_path / "it.safetensors")
    _alter(path, change, {})
    with pytest.raises(MapsFileError, match=message):
        normlens.open(path)


@in_one_case("kind", ["maps", "why"])
@in_one_case(
    "picture",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((449, 4, 3), np.uint8)],
)
def test_altered_pictures_are_refused(kind, picture, results, tmp_path):
    path = results[kind].save(tmp_path / "it.safetensors")
    _alter(path, {}, {"grid/picture": picture})
    with pytest.raises(MapsFileError, match="picture"):
        normlens.open(path)


def _alter(path, change, tensors):
    with safe_open(path, framework="numpy") as file:
        header = dict(file.metadata())
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    name = "maps" if "maps" in header else "explanation"
    meta = json.loads(header[name])
    if change is None:
        meta["grid"] = None
    else:
        meta["grid"] |= change
    save_crafted(arrays | tensors, path, metadata={**header, name: json.dumps(meta)})
