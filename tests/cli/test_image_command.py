"""``normlens map --image`` and ``normlens explain --image``."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from picture_examples import saved_classifier, scene
from test_loading import save_tiny

import normlens

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    Image.fromarray(scene()).save(folder / "scene.png")
    return {
        "vit": saved_classifier(folder / "vit"),
        "image": folder / "scene.png",
        "bert": save_tiny(folder / "bert"),
    }


def test_maps_of_an_image(places, shell, tmp_path):
    given = ("map", "--image", places["image"], "--model", places["vit"])
    assert "10 tokens" in shell(*given)
    for name in ("m.svg", "m.csv", "m.json", "m.safetensors"):
        assert f"wrote {tmp_path / name}: 10 tokens" in shell(*given, "--out", tmp_path / name)
    saved = normlens.open(tmp_path / "m.safetensors")
    assert saved.grid.picture.shape == (12, 12, 3)
    document = json.loads((tmp_path / "m.json").read_text())
    assert document["grid"] == {"rows": 3, "columns": 3, "first": 1}
    table = pd.read_csv(tmp_path / "m.csv")
    assert set(table["target_token"]) == set(saved.tokens)


def test_explanations_of_an_image(places, shell, tmp_path):
    given = ("explain", "--image", places["image"], "--model", places["vit"])
    printed = shell(*given, "--target", "tabby cat")
    assert "tabby cat" in printed
    assert "[CLS]" in printed
    for name in ("w.pdf", "w.json", "w.safetensors"):
        assert "tabby cat" in shell(*given, "--target", "tabby cat", "--out", tmp_path / name)
    assert normlens.open(tmp_path / "w.safetensors").grid.rows == 3
    assert json.loads((tmp_path / "w.json").read_text())["grid"]["columns"] == 3


@pytest.mark.parametrize("command", ["map", "explain"])
def test_mistakes_are_one_line(command, places, shell, tmp_path):
    vit = ("--model", places["vit"])
    image = ("--image", places["image"])
    assert "there is no file" in shell.error(command, "--image", tmp_path / "none.png", *vit)
    assert "not both" in shell.error(command, "a text", *image, *vit)
    assert "sees pictures, and there is no file 'a text'" in shell.error(command, "a text", *vit)
    assert "reads text, not a" in shell.error(command, *image, "--model", places["bert"])
    assert "words are known only for texts" in shell.error(command, *image, *vit, "--words")
