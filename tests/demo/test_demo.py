"""The demo: what it says it wrote is there, and it harms nothing that is not its own."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import normlens
from normlens.checkpoints.embedded import EMBEDDED
from normlens.demo import run as demo
from normlens.demo.explained import show_why
from normlens.demo.run import SENTENCES, run_demo
from normlens.errors import ModelLoadError, OutputError
from normlens.exports import printing

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
@pytest.mark.usefixtures("encoder_only")
def test_demo_prints_tables_and_writes_maps_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "_RESOLUTION", 50)  # small pictures are written sooner
    monkeypatch.setattr(demo, "SEQUENCES", 6)
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "minilm-1.safetensors").write_text("old")
    lines: list[str] = []
    assert run_demo(folder, force=True, echo=lines.append) == folder

    said = "\n".join(lines)
    assert "Completeness" in said
    assert "Spearman" in said
    assert re.search(r"layer +ATTN +RES1 +LN1 +FF +RES2 +LN2", said)
    numbers = re.findall(r"^ +(\d+) +-?\d\.\d\d", said, re.MULTILINE)
    assert numbers == ["0", "1", "2", "3", "4", "5"]
    assert "Pairs that FF amplifies most (ATTNRESLN-N → ATTNRESLNFF-N)" in said
    assert "normlens models --install smollm2" in said
    assert "normlens map" in said
    assert "Which tokens made the cosine +0.632 of “A man is playing a flute.”" in said
    assert re.search(r"flute +instrument +\+0\.3", said)
    assert normlens.open(folder / "minilm-cosine.safetensors").value == pytest.approx(
        0.632, abs=1e-3
    )

    assert (folder / "notes.txt").read_text() == "mine"
    written = {path.name for path in folder.iterdir()} - {"notes.txt", "papers"}
    listed = set(re.findall(r"^  (minilm-\S+)", said, re.MULTILINE))
    assert written == listed
    assert len([name for name in written if name.endswith(".png")]) == 5
    assert f"open {folder / 'minilm-viewer.html'} in a browser" in lines[-2]
    report = folder / "papers" / "report.html"
    assert report.resolve().as_uri() in lines[-1]
    assert "papers/report.html" in said
    text = report.read_text()
    assert "Kobayashi et al. 2024" in text
    assert "Kobayashi et al. 2021" in text
    for number, sentence in enumerate(SENTENCES, start=1):
        assert normlens.open(folder / f"minilm-{number}.safetensors").text == sentence


@needs_minilm
@pytest.mark.usefixtures("encoder_only")
def test_demo_without_matplotlib_says_how_to_get_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    lines: list[str] = []
    folder = run_demo(tmp_path / "new" / "demo", echo=lines.append)
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".html"}
    assert "pip install 'normlens[reproduce]'" in lines[0]


def test_demo_keeps_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="--force"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_demo_needs_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        run_demo(path, force=True)


def test_demo_without_its_model_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = replace(EMBEDDED["minilm"], package="normlens_no_such_package")
    monkeypatch.setitem(EMBEDDED, "minilm", absent)
    with pytest.raises(ModelLoadError, match="normlens models --install minilm"):
        run_demo(tmp_path / "demo")
    assert not any(tmp_path.iterdir())


def test_a_decoder_says_why(smollm2, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines: list[str] = []
    written = show_why(smollm2, "smollm2", tmp_path, lines.append, pictures=True)
    said = "\n".join(lines)
    assert "Why '␣are' and not '␣is' behind “The keys to the cabinet”?" in said
    assert "probability of '␣are'" in said
    assert "no token (biases)" in said
    assert {path for path, _ in written} == set(tmp_path.iterdir())
    assert [path.suffix for path, _ in written] == [".safetensors", ".png", ".png", ".png"]
    why = normlens.open(written[0][0])
    assert why.value > 0
    rows = [line.split() for line in said.splitlines()]
    for token, value in zip(why.tokens, why.contributions, strict=True):
        assert [token, f"{value:+.2f}".replace("-", "−")] in rows
    assert ["sum", f"{why.value:+.2f}"] in rows
    plain = show_why(smollm2, "smollm2", tmp_path, lines.append, pictures=False)
    assert [path.suffix for path, _ in plain] == [".safetensors"]
