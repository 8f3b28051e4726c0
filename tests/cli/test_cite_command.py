"""``normlens cite``: what it prints and writes, and that every mistake is one line."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from shell import Shell
from test_loading import save_tiny

import normlens
from normlens.cli import common

QUESTION, ANSWER = "the cat", "the cats sat"
TEXTS = {"a.txt": "the cats sat on a mat", "b.txt": "a cat sat\n", "-c.txt": "the mat"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = save_tiny(tmp_path_factory.mktemp("cite") / "tiny", "gpt2")
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def shell(capsys):
    return Shell(capsys)


@pytest.fixture
def files(tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    return [str(tmp_path / name) for name in TEXTS]


def piped(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(buffer=io.BytesIO(text.encode()))
    monkeypatch.setattr("sys.stdin", stream)
    monkeypatch.setattr(common, "is_piped", lambda: True)


def test_it_prints_what_lens_cite_says(model, shell, files):
    asked = ("-q", QUESTION, "--sources", *files, "--answer", ANSWER, "-m", model)
    out = shell("cite", *asked, "--ablations", "4")
    cited: Any = normlens.load(model).cite(
        QUESTION, [text.strip() for text in TEXTS.values()], ANSWER, ablations=4
    )
    assert f"log-probability {cited.log_probability:.4g}" in out
    first = cited.top(1).iloc[0]
    (row,) = (line for line in out.splitlines() if files[int(first.document)] in line)
    assert first.text in row
    assert f"{first.share:.0%}" in row
    for name in ("template and question", "answer so far", "no token"):
        assert name in out


def test_a_text_through_a_pipe_is_split(model, shell, monkeypatch):
    for words in ((), ("--sources", "-")):
        piped("the cats sat. a cat sat. the mat.", monkeypatch)
        out = shell("cite", "-q", QUESTION, *words, "--answer", ANSWER, "-m", model, "--json")
        assert [source["source"] for source in json.loads(out)["sources"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sources", "FILE"), "give a question"),
        (("-q", QUESTION), "give sources"),
        (("-q", QUESTION, "--sources", "nowhere.txt"), "cannot read 'nowhere.txt'"),
        (("-q", QUESTION, "--sources", "-", "-"), "give - once"),
        (("-q", QUESTION, "--sources", "FILE", "--by", "chapter"), "sentence"),
        (("-q", QUESTION, "--sources", "FILE", "--ablations", "2"), "--ablations is 0 or"),
        (("-q", QUESTION, "--sources", "FILE", "--answer", " "), "answer is empty"),
        (("-q", QUESTION, "--sources", "FILE", "--out", "x.docx"), "ending"),
    ],
)
def test_a_mistake_is_one_line(words, message, model, shell, files):
    typed = [files[0] if word == "FILE" else word for word in words]
    assert message in shell.error("cite", *typed, "-m", model)
