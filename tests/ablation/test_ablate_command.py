"""``normlens ablate``: what is refused in one line, and what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import run_examples as examples

from normlens.cli import main
from normlens.errors import InputError
from normlens.options import check_same, from_json
from normlens.studies.ablation.options import AblateOptions, parse_layer_choice


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return examples.tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return examples.corpus_file(tmp_path_factory.mktemp("data") / "letters.txt", 16)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert "Traceback" not in error
    return lines[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--components", "LN3"], "has no LN3; its layers (ATTN RES LN FF RES LN) have: ATTN"),
        (["--components", "(LN)"], "has no (LN)"),
        (["--layers", "2"], "layer 2 is out of range"),
        (["--layers", "last"], "cannot read --layers 'last'"),
        (["--limit", "9"], "has 8 sequences to measure beside 1 that are set apart"),
        (["--label-column", "label"], "leave label (--label-column) out"),
        (["--gold", "links"], "takes no option 'gold'"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(
    words: list[str],
    line: str,
    bert: Path,
    letters: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    call = ["reproduce", "ablate", "--model", str(bert), "--data", str(letters), "--out", str(out)]
    assert main([*call, "--device", "cpu", *words]) == 2
    assert line in one_line(capsys)
    assert not out.exists()


def test_a_folder_with_other_files_is_refused(
    bert: Path, letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    call = [
        "reproduce",
        "ablate",
        "--model",
        str(bert),
        "--data",
        str(letters),
        "--out",
        str(tmp_path),
    ]
    assert main(call) == 2
    assert "holds other files" in one_line(capsys)


def test_the_page_is_printed_and_built_again_without_torch(
    bert: Path, letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--components", "FF", "--layers", "0,1"]
    words += ["--device", "cpu", "--quiet"]
    call = [
        "reproduce",
        "ablate",
        "--model",
        str(bert),
        "--data",
        str(letters),
        "--out",
        str(out),
        *words,
    ]
    assert main(call) == 0
    page = out / "report.html"
    assert capsys.readouterr().out.strip() == str(page)
    before = page.read_bytes()
    page.unlink()
    code = (
        "import sys; from normlens.cli import main; status = main(sys.argv[1:]); "
        "assert not {'torch', 'transformers'} & set(sys.modules); sys.exit(status)"
    )
    command = [sys.executable, "-c", code, "reproduce", "report", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert page.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "layers", "each", "together"),
    [
        ("each", None, True, False),
        ("all", None, False, True),
        ("each,all", None, True, True),
        ("0,3-5", [0, 5, 4, 3], True, True),
        ("0,3-5,all", [0, 5, 4, 3], False, True),
        ("each, 2", [2], True, False),
    ],
)
def test_layers_and_words(text: str, layers: list[int] | None, each: bool, together: bool) -> None:
    choice = parse_layer_choice(text)
    assert (None if choice.layers is None else list(choice.layers)) == layers
    assert (choice.each, choice.together) == (each, together)


def test_options_survive_a_file() -> None:
    options = AblateOptions("m", "d", components=("FF",), kinds=("zero", "mean"), layers="0-2,all")
    assert from_json(AblateOptions, json.loads(json.dumps(vars(options)))) == options
    with pytest.raises(InputError, match="layers 'all', not '0-2,all'"):
        check_same(AblateOptions("m", "d", ("FF",), ("zero", "mean"), "all"), options, ["layers"])
