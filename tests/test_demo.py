"""The demo: what it says it wrote is there, and it harms nothing that is not its own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import normlens
from normlens.errors import OutputError
from normlens.loading.embedded import EMBEDDED
from normlens.results import exports
from normlens.studies.papers import demo
from normlens.studies.papers.demo import SENTENCES, run_demo

needs_minilm = pytest.mark.skipif(
    not EMBEDDED["minilm"].installed,
    reason="the embedded model is not installed (normlens models --install minilm)",
)


@pytest.fixture
def encoder_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the decoder, which takes long to load, were not installed."""
    absent = replace(EMBEDDED["smollm2"], package="normlens_no_such_package")
    monkeypatch.setitem(EMBEDDED, "smollm2", absent)


@needs_minilm
@pytest.mark.usefixtures("encoder_only", "sketched")
def test_demo_prints_tables_and_writes_maps_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "_RESOLUTION", 50)  # small pictures are written sooner
    monkeypatch.setattr(demo, "SEQUENCES", 6)
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "minilm-1.safetensors").write_text("old")
    lines: list[str] = []
    assert run_demo(folder, force=True, echo=lines.append) == folder

    said = "\n".join(lines)
    assert "normlens models --install smollm2" in said
    assert re.search(r"minilm-cosine.safetensors: .*flute.*instrument.*0\.6317", said)
    assert normlens.open(folder / "minilm-cosine.safetensors").value == pytest.approx(
        0.632, abs=1e-3
    )

    assert (folder / "notes.txt").read_text() == "mine"
    written = {path.name for path in folder.iterdir()} - {"notes.txt", "papers"}
    assert written == {
        Path(line.split(": ")[0]).name for line in lines if line.startswith(str(folder))
    } - {"report.html"}
    assert len([name for name in written if name.endswith(".png")]) == 5
    assert f"open {folder / 'minilm-viewer.html'} in a browser" in lines[-1]
    report = folder / "papers" / "report.html"
    assert report.resolve().as_uri() in lines[-2]
    text = report.read_text()
    assert "Kobayashi et al. 2024" in text
    assert "Kobayashi et al. 2021" in text
    for number, sentence in enumerate(SENTENCES, start=1):
        assert normlens.open(folder / f"minilm-{number}.safetensors").text == sentence


def test_demo_keeps_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
