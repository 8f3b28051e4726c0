"""Ways to the page: the command line, the methods of maps, and what notebooks show."""

from __future__ import annotations

import builtins
import html
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from viewer_examples import hostile_explanation, hostile_maps

import normlens
from normlens.cli import main
from normlens.errors import InputError, OutputError
from normlens.results import exports as export
from normlens.viewer import notebook


@pytest.fixture
def saved(tmp_path):
    return hostile_maps().save(tmp_path / "maps.safetensors")


@pytest.fixture
def explained(tmp_path):
    return hostile_explanation().save(tmp_path / "why.safetensors")


@pytest.fixture
def opened(monkeypatch):
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    return addresses


def test_view_writes_a_page(saved, opened, capsys):
    out = saved.with_name("soap.html")
    assert main(["view", str(saved), "--out", str(out)]) == 0
    assert "normlens-payload" in out.read_text()
    assert str(out) in capsys.readouterr().out
    assert opened == []
    assert main(["view", str(saved), str(saved), "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["view", str(saved), str(saved), "--out", str(out), "--force"]) == 0
    assert capsys.readouterr().out.startswith("wrote")


def test_view_opens_the_browser_unless_told_not_to(saved, opened, capsys):
    assert main(["view", str(saved)]) == 0
    (address,) = opened
    assert address.startswith("file://")
    assert address.endswith("maps.html")
    assert main(["view", str(saved), "--no-browser"]) == 0
    assert len(opened) == 1
    written = capsys.readouterr().out.split()[-3]
    assert Path(written).is_file()


def test_view_refuses_what_it_cannot_do(saved, tmp_path, capsys):
    for arguments, words in (
        ([str(tmp_path / "none.safetensors")], "no maps file"),
        ([str(saved), "--out", str(tmp_path / "soap.png")], "end it in .html"),
    ):
        assert main(["view", *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1


def test_maps_and_exports_write_pages(tmp_path):
    maps = hostile_maps()
    path = maps.to_html(tmp_path / "a.html")
    assert path.read_text().startswith("<!doctype html>")
    with pytest.raises(OutputError, match="exists already"):
        maps.to_html(path, overwrite=False)
    maps.to_html(path)  # it is a page of NormLens
    (tmp_path / "mine.html").write_text("<!doctype html><p>normlens")
    with pytest.raises(OutputError, match="exists already"):
        maps.to_html(tmp_path / "mine.html")
    for name in ("a.png", "a"):
        with pytest.raises(InputError, match=r"the ending chooses the format: \.html"):
            maps.to_html(tmp_path / name)
        assert not (tmp_path / name).exists()
    export.write(maps, tmp_path / "b.html", layers=[1])
    with pytest.raises(InputError, match="for pictures"):
        export.check_format("c.html", {"colour": "sqrt"})


def test_notebooks_get_a_widget():
    pytest.importorskip("anywidget")
    maps = hostile_maps()
    shown = maps.show(layer=1, scope="FF")
    assert shown.state == {"layer": "1", "scope": "FF"}
    assert maps.show(layer=-1).state == {"layer": "1"}
    assert maps.show(hostile_maps(layers=3), item=1, layer="2").state == {"item": "1", "layer": "2"}
    assert shown.payload.startswith(b"NLVIEW01")
    bundle = maps._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == repr(maps)


@pytest.mark.parametrize("layer", [2, "2", "first", None])
def test_a_layer_that_is_not_there_is_not_shown_as_another(layer):
    with pytest.raises(InputError, match=r"layer .* is not among .*: 0, 1$"):
        hostile_maps(layers=2).show(layer=layer)


def test_without_anywidget_notebooks_get_a_frame_and_a_hint(monkeypatch):
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "anywidget":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "anywidget", raising=False)
    notebook.widget_class.cache_clear()
    maps = hostile_maps()
    data = maps._repr_mimebundle_()
    assert "pip install 'normlens[widget]'" in data["text/html"].replace("&#x27;", "'")
    assert "srcdoc=" in data["text/html"]
    assert "<script" not in data["text/html"]
    shown = maps.show(layer=1, scope="FF")
    assert "pip install" in repr(shown)
    assert "<iframe" in shown._repr_html_()
    assert "layer=1&amp;scope=FF" in html.unescape(shown._repr_html_())
    notebook.widget_class.cache_clear()


def test_results_of_any_kind_stand_in_one_page_with_notes(saved, explained, tmp_path, capsys):
    out = tmp_path / "lesson.html"
    words = ["--title", "A <b>lesson</b>", "--note", "Why are?", "--out", str(out)]
    assert main(["view", str(explained), str(saved), *words]) == 0
    assert str(out) in capsys.readouterr().out
    page = out.read_text("utf-8")
    assert "<h1>A &lt;b&gt;lesson&lt;/b&gt;</h1>" in page
    assert page.count("<iframe ") == 2
    assert page.index("<p>Why are?</p>") < page.index("<iframe ")
    # Each frame holds the page that the result has alone.
    frames = [
        html.unescape(part.partition('"></iframe>')[0]) for part in page.split('srcdoc="')[1:]
    ]
    for path, frame in zip((explained, saved), frames, strict=True):
        alone = normlens.open(path).to_html(tmp_path / f"{path.stem}-alone.html")
        assert frame == alone.read_text("utf-8")
    assert main(["view", str(saved), "--note", "a", "--note", "b"]) == 2
    assert "more notes than files" in capsys.readouterr().err


def test_the_frames_of_a_handout_are_as_high_as_what_they_show(saved, explained, tmp_path, viewer):
    out = tmp_path / "lesson.html"
    assert main(["view", str(explained), str(saved), "--out", str(out)]) == 0
    viewer.page.goto(out.as_uri())
    for frame in viewer.page.frames[1:]:
        frame.wait_for_selector('.normlens[data-busy="false"]')
    viewer.page.wait_for_timeout(500)
    measured = viewer.page.evaluate(
        "[...document.querySelectorAll('iframe')].map((frame) => "
        "[frame.clientHeight, frame.contentDocument.documentElement.scrollHeight])"
    )
    assert len(measured) == 2
    for height, content in measured:
        assert 300 < content <= height + 1 < 3000
