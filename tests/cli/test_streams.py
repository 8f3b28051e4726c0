"""Texts from pipes, results into pipes, and signs of life beside them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import transformers
import typer
from test_loading import save_tiny

import normlens
from normlens.cli import app, common
from normlens.cli.corpus import EXAMPLES
from normlens.loading import load as loading
from normlens.models.tiny import scramble, tiny_config

TEXT = "the cats sat on a mat"
LINES = b"\xef\xbb\xbfthe cat sat\n\n  a mat \r\nthe mat\n"
COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("streams") / "tiny")


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    """A tiny decoder with a head."""
    folder = save_tiny(tmp_path_factory.mktemp("streams") / "speaker", "gpt2")
    headed = transformers.GPT2LMHeadModel(tiny_config("gpt2")).eval()
    scramble(headed)
    headed.save_pretrained(folder)
    return folder


@pytest.fixture
def typed(monkeypatch):
    """Puts bytes into standard input."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return put


def piped(data: bytes, *words: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "normlens", *map(str, words)],
        input=data,
        capture_output=True,
        check=False,
    )


# Reading -----------------------------------------------------------------------------------------


def test_a_dash_reads_standard_input(model, speaker, shell, typed):
    typed(b"a mat\n")
    assert "[CLS] a mat [SEP]" in shell("map", "-", "--model", model)
    typed(b"the cat\n")
    assert "cat" in shell("explain", "-", "--model", speaker)
    typed(b"the cat sat\n")
    given = shell("cosine", "a mat", "-", "--model", model)
    assert given == shell("cosine", "a mat", "the cat sat", "--model", model)


@pytest.mark.parametrize(
    ("data", "words", "message"),
    [
        (b"", ("map", "-"), "the text is empty"),
        (b"\n \n", ("map", "-", "--lines"), "standard input holds no text"),
        (b"a\n\xff\n", ("map", "-", "--lines"), "line 2 of standard input is not UTF-8"),
        (b"a\n", ("map", "-", "--json", "--colour", "sqrt"), "only pictures follow --colour"),
        (b"a\n", ("explain", "-", "--json", "--picture", "flow"), "only pictures"),
    ],
)
def test_what_cannot_be_read_or_written_together(data, words, message, model, shell, typed):
    typed(data)
    status, _, line = shell.run(*words, "--model", model)
    assert status == 2
    assert message in line
    assert line.count("\n") == 1


# Lines -------------------------------------------------------------------------------------------


def test_lines_load_the_model_once(model, shell, typed, monkeypatch):
    loaded = []
    load = loading.load

    def watched(*given: Any, **options: Any) -> Any:
        loaded.append(given)
        return load(*given, **options)

    monkeypatch.setattr(loading, "load", watched)
    typed(LINES)
    out = shell("map", "--lines", "-", "--json", "--model", model, "--scope", "FF")
    documents = [json.loads(line) for line in out.splitlines()]
    assert len(loaded) == 1
    assert [document["text"] for document in documents] == ["the cat sat", "a mat", "the mat"]
    lens = load(model)
    for document in documents:
        values = np.array(document["maps"]["ATTNRESLNFF-N"])
        np.testing.assert_allclose(values, lens.maps(document["text"])["FF"], rtol=1e-6)


def test_lines_of_a_file_become_files_with_their_numbers(model, tmp_path, shell):
    source = tmp_path / "texts.txt"
    source.write_bytes(LINES)
    words = ("map", "--lines", "--file", source, "--model", model, "--out", tmp_path / "m.json")
    out = shell(*words)
    assert out.count("wrote") == 3
    written = {path.name: json.loads(path.read_text())["text"] for path in tmp_path.glob("m*")}
    assert written == {"m-1.json": "the cat sat", "m-3.json": "a mat", "m-4.json": "the mat"}
    status, _, line = shell.run(*words)
    assert status == 2
    assert "m-1.json' exists already" in line
    shell(*words, "--force")


def test_an_error_says_which_line(model, shell, typed):
    typed(b"the cat\n" + b"the " * 60 + b"\n")
    status, out, line = shell.run("map", "-", "--lines", "--json", "--model", model)
    assert status == 2
    assert line.startswith("error: line 2: ")
    assert json.loads(out)["text"] == "the cat"


def test_a_reader_that_goes_away_ends_it_silently(model):
    words = [sys.executable, "-m", "normlens", "map", "--lines", "--json", "--model", str(model)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"the cat\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["text"] == "the cat"
        process.stdout.close()
        process.stdin.write(b"the cat\n" * 3)
        process.stdin.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (1, b"")


# Signs of life -----------------------------------------------------------------------------------


def test_a_line_now_and_then_beside_a_pipe(model, shell, monkeypatch):
    monkeypatch.setattr(common, "LINE_EVERY", 0.0)
    status, out, err = shell.run("map", TEXT, "--model", model, "--json")
    assert status == 0
    assert err.splitlines() == [f"computing maps: layer {k} of 2" for k in (1, 2)]
    json.loads(out)
    assert "comparing: layer" in shell.run("cosine", TEXT, "a mat", "--model", model)[2]


# Help --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_flags_have_no_type(command, shell, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    out = shell(*filter(None, [command]), "--help")
    assert "--help" in out
    assert "<bool>" not in out
    assert "BOOLEAN" not in out


# Runs --------------------------------------------------------------------------------------------


def test_a_run_takes_the_embedded_model_unless_told_otherwise(shell, tmp_path, monkeypatch):
    asked: list[Any] = []

    def begin(model: str, data: str, out: str, **_: Any) -> Any:
        asked.append((model, data, out))
        raise normlens.errors.InputError("enough")

    monkeypatch.setattr("normlens.corpus.runs.runs.run", begin)
    assert "enough" in shell.error("run", "--data", "sample", "--out", tmp_path / "run")
    assert asked == [("minilm", "sample", str(tmp_path / "run"))]
    assert "a new run needs --data and --out" in shell.error("run", "--out", tmp_path / "run")
    assert "needs --model, --data" in shell.error("evaluate", "--out", tmp_path / "run")


def test_a_query_without_sql_lists_tables_and_questions_that_work(model, speaker, tmp_path, shell):
    pytest.importorskip("duckdb")
    done = [
        normlens.run(speaker, "sample", tmp_path / "why", limit=2, measures="explanations"),
        normlens.run(model, "sample", tmp_path / "maps", limit=2),
    ]
    asked = set()
    for run in done:
        listed = json.loads(shell("query", run.folder, "--json"))
        assert set(listed["tables"]) == set(run.tables)
        out = shell("query", run.folder)
        for example in listed["examples"]:
            assert example["question"] in out
            assert f"normlens query {run.folder}" in out
            run.sql(example["sql"])
            asked.add(example["sql"])
    assert asked == set(EXAMPLES.values())
