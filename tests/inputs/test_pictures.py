"""From a picture to pixel values, patches and back to a picture."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from one_case import in_one_case
from picture_examples import classifier, processor, saved_classifier, scene

import normlens
from normlens.errors import InputError, MissingDependencyError
from normlens.inputs.signals import picture_of
from normlens.results.axes import PatchGrid

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def lens():
    return normlens.load(classifier(), processor())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scene.png"
    Image.fromarray(scene()).save(path)
    return path


def test_every_form_of_a_picture_gives_the_same_maps(lens, file):
    image = Image.fromarray(scene())
    pixels = processor()(images=image, return_tensors="pt")["pixel_values"]
    expected = lens.maps(image)
    assert expected.completeness < 1e-5
    for given in (scene(), scene() / 255, scene().astype(int), str(file), file, pixels[0]):
        assert lens.maps(given) == expected
    several = lens.maps([image, file, scene()])
    assert several == [expected] * 3
    assert lens.maps(pixels) == [expected]


def test_pictures_are_made_rgb_and_turned(lens, tmp_path):
    grey = Image.fromarray(scene()).convert("L")
    assert lens.maps(grey) == lens.maps(np.repeat(np.array(grey)[..., None], 3, -1))
    assert lens.maps(np.array(grey)) == lens.maps(grey)
    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    upside_down = Image.fromarray(scene()).rotate(180)
    upside_down.save(turned, exif=exif, quality=100, subsampling=0)
    found, expected = lens.maps(turned).grid.picture, lens.maps(scene()).grid.picture
    assert np.abs(found.astype(int) - expected).max() < 12


def test_the_picture_is_what_the_model_saw(lens):
    maps = lens.maps(scene())
    small = Image.fromarray(scene()).resize((12, 12), Image.Resampling.BILINEAR)
    assert maps.grid == PatchGrid(3, 3, 1, np.array(small))
    assert maps.tokens[0] == "[CLS]"
    assert maps.special == [True] + [False] * 9
    assert maps.token_ids == []
    assert maps.text is None


@in_one_case("values", [torch.full((3, 8, 8), 4.0), torch.zeros(5, 8, 8)])
def test_values_that_are_no_picture_give_none(values):
    assert picture_of(values, processor()) is None


def test_without_a_processor_there_is_no_picture():
    bare = normlens.load(classifier())
    values = torch.zeros(3, 12, 12)
    assert bare.maps(values).grid.picture is None
    with pytest.raises(InputError):
        bare.maps(scene())


@in_one_case("given", [np.zeros((3, 12, 12), np.uint8), np.full((8, 8, 3), 7.5), [], 7])
def test_what_is_no_picture(given, lens, tmp_path):
    with pytest.raises(InputError):
        lens.maps(given)
    (tmp_path / "notes.png").write_text("not a picture")
    with pytest.raises(InputError):
        lens.maps(tmp_path / "notes.png")


def test_the_processor_comes_with_the_model(tmp_path, file):
    folder = saved_classifier(tmp_path / "vit")
    lens = normlens.load(folder, device="cpu")
    assert type(lens.processor).__name__.startswith("ViTImageProcessor")
    assert lens.tokenizer is None
    assert lens.maps(file) == normlens.load(classifier(), processor()).maps(file)
    (folder / "preprocessor_config.json").unlink()
    assert normlens.load(folder, device="cpu").processor is None


def test_pillow_is_named_where_it_is_missing(lens, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError):
        lens.maps("scene.png")
    assert lens.maps(torch.zeros(3, 12, 12)).completeness < 1e-5


# The grid ----------------------------------------------------------------------------------------


def test_places_in_the_grid():
    grid = PatchGrid(2, 3, 1)
    tokens = ["[CLS]", *grid.labels(), "[END]"]
    assert tokens[grid.token(1, 2)] == "2,3"
    assert grid.place(6) == (1, 2)
    assert grid.place(0) is grid.place(7) is None
    assert grid.named("2, 3", tokens) == 6
    assert grid.named(-1, tokens) == 7
    np.testing.assert_array_equal(grid.of(np.arange(8)), [[1, 2, 3], [4, 5, 6]])
    for wrong in ("3,1", 8, 1.5):
        with pytest.raises(InputError):
            grid.named(wrong, tokens)
    with pytest.raises(InputError):
        grid.token(2, 0)
