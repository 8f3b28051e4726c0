"""What every command with --out promises: its files, and that none is lost."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from test_loading import save_tiny

import normlens

TEXT, OTHER = "the cats sat on a mat", "a cat sat"
#: Command lines by the class of what they write.
COMMANDS: dict[str, tuple[str, ...]] = {
    "Maps": ("map", TEXT),
    "Explanation": ("explain", TEXT),
    "Explanations": ("explain", TEXT, "--position", "all"),
    "Cosine": ("cosine", TEXT, OTHER),
    "Score": ("score", TEXT, OTHER),
    "Ranking": ("rank", TEXT, OTHER, "the mat"),
    "Citation": ("cite", "-q", "the cat", "--sources", "a.txt", "--answer", OTHER),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny model with a head, and one that embeds texts."""
    folder = save_tiny(tmp_path_factory.mktemp("written") / "speaker", "gpt2")
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return {False: folder, True: save_tiny(tmp_path_factory.mktemp("written") / "tiny")}


@pytest.mark.parametrize("kind", COMMANDS)
def test_files_hold_the_result(kind, models, shell, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    embeds = kind in ("Cosine", "Score", "Ranking")
    words: Any = (*COMMANDS[kind], "--model", models[embeds], "--out")
    for ending in ("safetensors", "csv", "json", "html", *["png"] * (kind != "Ranking")):
        assert shell(*words, f"it.{ending}").startswith(f"wrote it.{ending}: ")
    assert type(normlens.open("it.safetensors")).__name__ == kind
    assert "exists already" in shell.error(*words, "it.csv")
    shell(*words, "it.csv", "--force")


@pytest.mark.parametrize("kind", COMMANDS)
def test_files_are_judged_before_a_model_is_loaded(kind, shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("precious")
    for out, said in (
        ("it.xlsx", "the ending chooses"),
        ("no/it.csv", "does not exist"),
        ("mine.csv", "exists already"),
    ):
        assert said in shell.error(*COMMANDS[kind], "--model", "./no-model", "--out", out)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]
    assert (tmp_path / "mine.csv").read_text() == "precious"
