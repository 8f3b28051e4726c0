"""The pictures that notebooks carry for pages that run no widget."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from viewer_examples import hostile_explanation, hostile_maps

from normlens.errors import MissingDependencyError
from normlens.viewer import notebook

WIDGET = "application/vnd.jupyter.widget-view+json"
PNG = b"\x89PNG\r\n"


def data_of(bundle: Any) -> dict[str, Any]:
    return bundle[0] if isinstance(bundle, tuple) else bundle


def size_of(data: dict[str, Any]) -> tuple[int, int]:
    """Width and height of a bundle's picture, from its first chunk."""
    picture = base64.b64decode(data["image/png"])
    assert picture.startswith(PNG)
    return int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")


@pytest.mark.parametrize("make", [hostile_maps, hostile_explanation])
def test_a_cell_has_the_viewer_and_a_picture(make):
    pytest.importorskip("anywidget")
    pytest.importorskip("matplotlib")
    result = make()
    for bundle in (result._repr_mimebundle_(), result.show()._repr_mimebundle_()):
        data = data_of(bundle)
        assert WIDGET in data
        assert min(size_of(data)) > 100
    assert data_of(result._repr_mimebundle_())["text/plain"] == repr(result)


def test_without_matplotlib_the_viewer_is_there_alone(monkeypatch):
    pytest.importorskip("anywidget")

    def refuse() -> Any:
        raise MissingDependencyError("pictures need matplotlib")

    shown = notebook.Notebook(lambda *_: "", "call", lambda _: b"NLVIEW01", refuse)
    data = data_of(shown.mimebundle("plain"))
    assert WIDGET in data
    assert "image/png" not in data
