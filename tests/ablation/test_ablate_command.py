"""``normlens ablate``: what is refused in one line, and what it prints."""

from __future__ import annotations

import subprocess
import sys

import pytest
import run_examples as examples
from shell import Shell

from normlens.studies.ablation.options import parse_layer_choice


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return examples.tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    return examples.corpus_file(tmp_path_factory.mktemp("data") / "letters.txt", 16)


def test_bad_input_is_one_line_before_anything_starts(bert, letters, tmp_path, capsys):
    out, shell = tmp_path / "out", Shell(capsys)
    call = ("reproduce", "ablate", "--model", bert, "--data", letters, "--out", out)
    for words in (
        ("--components", "LN3"),
        ("--layers", "last"),
        ("--limit", "9"),
        ("--label-column", "label"),
    ):
        shell.error(*call, "--device", "cpu", *words)
        assert not out.exists()


def test_the_page_is_printed_and_built_again_without_torch(bert, letters, tmp_path, capsys):
    out = tmp_path / "out"
    words = ("--components", "FF", "--layers", "0,1", "--device", "cpu", "--quiet")
    call = ("reproduce", "ablate", "--model", bert, "--data", letters, "--out", out)
    page = out / "report.html"
    assert Shell(capsys)(*call, *words).strip() == str(page)
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
def test_layers_and_words(text, layers, each, together):
    choice = parse_layer_choice(text)
    assert (None if choice.layers is None else list(choice.layers)) == layers
    assert (choice.each, choice.together) == (each, together)
