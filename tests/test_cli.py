"""The command line: what it prints, and that everything a user can do wrong is one line."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from shell import Shell
from test_loading import save_tiny

import normlens
from normlens import cli
from normlens.models.table import Family, family_table

TEXT = "the cats sat on a mat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of two layers and 48 positions, in a folder."""
    return save_tiny(tmp_path_factory.mktemp("cli") / "tiny")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("cli") / "decoder", "gpt_neox")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


# The command as a whole --------------------------------------------------------------------------


def test_there_are_few_commands_and_options() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    counts = {
        name: sum(p.opts[0].startswith("-") and p.name != "help_all" for p in command.params)
        for name, command in commands.items()
    }
    assert len(counts) <= 16, sorted(counts)
    assert sum(counts.values()) <= 170, counts


def test_help_shows_the_options_that_people_use_and_help_all_the_rest(shell: Shell) -> None:
    for command in ("map", "explain", "run", "evaluate", "reproduce"):
        short, every = (
            {*re.findall(r"--[a-z][a-z-]*", shell(command, option))}
            for option in ("--help", "--help-all")
        )
        assert len(short) <= 16  # ten or so, and what their descriptions name
        assert short < every
        again = {*re.findall(r"--[a-z][a-z-]*", shell(command, "--help"))}
        assert again == short  # what --help-all showed is hidden again


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("map", "--nonsense"), "No such option: --nonsense"),
        (("check", "run", "surplus"), "surplus"),
    ],
)
def test_usage_errors_are_one_line(words: tuple[str, ...], message: str, shell: Shell) -> None:
    line = shell.error(*words)
    assert message in line
    assert "--help" in line


def test_interrupt(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("normlens.loading.load.load", interrupted)
    status, out, _ = shell.run("map", TEXT)
    assert (status, out) == (130, "")


def test_unexpected_exceptions_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("normlens.loading.load.load", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["map", TEXT])


def run_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_help_imports_nothing_slow() -> None:
    done = run_python("-X", "importtime", "-m", "normlens", "--help")
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "normlens.cli.map" in imported
    roots = {name.partition(".")[0] for name in imported}
    assert not roots & {"torch", "transformers", "numpy", "scipy", "pandas", "matplotlib"}


def test_an_error_as_a_process() -> None:
    done = run_python("-m", "normlens", "map", TEXT, "--layers", "one")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cannot read --layers 'one'")
    assert done.stderr.count("\n") == 1


# map: what it prints -----------------------------------------------------------------------------


def test_summary(model: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = shell("map", TEXT, "--model", model)
    assert max(map(len, out.splitlines())) > 100  # nothing is broken for a narrow pipe
    for words in (
        "layers 0–1 of ATTN RES LN FF RES LN",
        "9 tokens: [CLS] the cat ##s sat on a mat [SEP]",
        "completeness: ",
        "Similarity of each scope to the one before (Spearman's ρ)",
        "ATTN-W → ATTN-N",
        "→ LN2",
        "ATTNRESLN-N → ATTNRESLNFF-N",
    ):
        assert words in out
    maps = normlens.load(model).maps(TEXT)
    assert f"{maps.similarity('LN1', 'FF')[0]:.2f}" in out


def test_one_scope_is_shown_as_its_map(model: Path, shell: Shell) -> None:
    out = shell("map", TEXT, "--model", model, "--scope", "ff", "--layers", "1")
    assert "ATTNRESLNFF-N, layer 1" in out
    assert "layer 0" not in out
    values = normlens.load(model).maps(TEXT)["FF"][1]
    assert all(f"{value:.3g}" in out for value in values.ravel())


# map: files --------------------------------------------------------------------------------------


def test_text_from_a_file_and_from_stdin(
    model: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbfthe cat\nsat\n")
    assert "[CLS] the cat sat [SEP]" in shell(
        "map", "--file", tmp_path / "text.txt", "--model", model
    )
    stdin = io.TextIOWrapper(io.BytesIO(b"a mat\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert "[CLS] a mat [SEP]" in shell("map", "--file", "-", "--model", model)


# map: what a user can do wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ((), ["one text", "--file"]),
        (("a", "--file", "b"), ["two texts were given"]),
        (("",), ["the text is empty"]),
        (("--file", "nowhere.txt"), ["cannot read 'nowhere.txt'", "No such file"]),
        (("a", "--layers", "one"), ["--layers 'one'", "0,2-4", "counted from 0"]),
        (("a", "--scope", ""), ["--scope names nothing; leave it out to take all"]),
        (("a", "--nonlinearity", "magic"), ["'magic'", "ig, ig-bias, gradient, shapley"]),
        (("a", "--memory-limit", "much"), ["'much'", "512MB"]),
        (("a", "--out", "maps.docx"), [".docx", ".safetensors", ".csv", ".svg"]),
        (("a", "--colour", "sqrt"), ["only pictures follow --colour", "--out"]),
        (("a", "--out", "no/such/folder/maps.csv"), ["'no/such/folder'"]),
    ],
)
def test_wrong_options_are_noticed_before_the_model_is_loaded(
    words: tuple[str, ...],
    fragments: list[str],
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        pytest.fail("the model was loaded first")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("normlens.loading.load.load", loaded)
    (tmp_path / "file.txt").write_text("not a folder")
    (tmp_path / "here.csv").mkdir()
    before = sorted(tmp_path.rglob("*"))
    line = shell.error("map", *words)
    assert all(fragment in line for fragment in fragments), line
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (("--layers", "9"), ["layer 9 is out of range", "layers 0 to 1", "counted from 0"]),
        (("--scope", "FFN"), ["unknown scope 'FFN'", "ATTNRESLNFF-N", "LN2"]),
        (("--device", "nonsense"), ["no device 'nonsense'", "'cpu'"]),
        (("--dtype", "int8"), ["unknown dtype 'int8'", "bfloat16"]),
        (("--revision", "v2"), ["revision 'v2' is for models on the hub"]),
    ],
)
def test_options_that_the_model_does_not_have(
    words: tuple[str, ...], fragments: list[str], model: Path, tmp_path: Path, shell: Shell
) -> None:
    line = shell.error("map", TEXT, "--model", model, "--out", tmp_path / "maps.csv", *words)
    assert all(fragment in line for fragment in fragments), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["someone/no-such-model", "bert-base-uncased"])
def test_a_name_without_the_hub(name: str, shell: Shell) -> None:
    line = shell.error("map", TEXT, "--model", name)
    for fragment in (repr(name), "unreachable", "embedded", "folder", "cache"):
        assert fragment in line


# models ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def families() -> list[Family]:
    return family_table()


@pytest.fixture
def one_table(families: list[Family], monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is not computed anew for each question about it."""
    monkeypatch.setattr("normlens.models.table.family_table", lambda: list(families))


@pytest.mark.usefixtures("one_table")
def test_models_are_searched_by_name_and_traits(shell: Shell) -> None:
    out = shell("models", "WINDOWS", "parallel")
    assert "cohere2" in out
    assert "falcon" not in out
    assert "minilm" not in out
    assert "gated silu" in out
    listed = json.loads(shell("models", "--json", "granite"))["families"]
    assert [row["model_type"] for row in listed] == [
        "granite",
        "granitemoe",
        "granitemoeshared",
    ]
    assert "factors" in listed[0]["traits"]


@pytest.mark.usefixtures("one_table")
def test_a_search_that_finds_nothing_says_so(shell: Shell) -> None:
    assert "no model type has 'windows', 'nothing'" in shell.error("models", "windows", "nothing")
    assert "'mamba' is not supported: its layers are state-space" in shell.error("models", "mamba")


# estimate and demo -------------------------------------------------------------------------------


def test_estimate(model: Path, shell: Shell) -> None:
    out = shell("map", "--model", model, "--estimate", 40, "--layers", "1")
    for words in (
        "1 of 2 layers",
        "1 × 40 tokens, 8 scopes",
        "model weights",
        "feed-forward pairs",
        "n×n×H×d",
        "automatic batch size: ",
    ):
        assert words in out


def test_estimate_for_a_gpu_that_is_not_here(
    model: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ("map", "--model", model, "--estimate", 40)
    out = shell(*words, "--device", "cuda")
    assert "GPU kernels, by source, in float32" in out
    assert "kernel buffers" in out
    assert "cuda is not here" in out
    assert "tile buffers" in shell(*words, "--device", "cpu")
    result = json.loads(shell(*words, "--device", "cuda", "--json"))
    assert (result["device"], result["method"], result["kernels"]) == ("cuda", "by source", True)
    assert result["tile"] is None
    exact = json.loads(shell(*words, "--device", "cuda", "--dtype", "float64", "--json"))
    assert exact["tile"] is not None
    assert not exact["kernels"]


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (("--estimate", "8", "--device", "meta"), ["device 'meta' is not available"]),
        (("--estimate", "49"), ["at most 48 tokens in its text, not 49"]),
        (("--estimate", "8,9,10"), ["a number of tokens, or N,M"]),
        (("--estimate", "8", "--layers", "7"), ["layer 7 is out of range", "layers 0 to 1"]),
    ],
)
def test_wrong_estimates(
    words: tuple[str, ...], fragments: list[str], model: Path, shell: Shell
) -> None:
    line = shell.error("map", "--model", model, *words)
    assert all(fragment in line for fragment in fragments), line


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("could not create a primitive"), OSError(12, "no memory")]
)
def test_no_memory_is_one_line(error, shell, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("normlens.results.store.open", fail)
    assert "not enough memory; use" in shell.error("view", "maps.safetensors")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["cosine", "one text"], "cosine compares two texts"),
        (["score", "one text"], "score compares a query with a document"),
        (["view", "page.html"], "is a page already; open it in a browser"),
        (["map", "hi", "--model", "minlm"], "did you mean 'minilm'?"),
        (["map", "hi", "--measures", "mixing"], "have it); see: normlens map --help"),
    ],
)
def test_common_slips_are_answered_in_one_line(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(typed) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_help_about_a_command_is_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "cosine"]) == 0
    of_topic = capsys.readouterr().out
    assert cli.main(["cosine", "--help"]) == 0
    assert of_topic == capsys.readouterr().out
