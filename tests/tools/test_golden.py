"""The golden set: made twice it is the same, and what changes is found by its name."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from forking import run_python

ROOT = Path(__file__).resolve().parents[2]
MAP = "alone/arrays/ATTN-N"
CHOICE = ("--only", "numbers,help", "--families", "bert,gpt2", "-j", 0)


@pytest.fixture(scope="module")
def store():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from golden import store

        yield store
    finally:
        sys.path.remove(str(ROOT / "tools"))


def golden(*words: object):
    return run_python(ROOT / "tools" / "golden" / "__main__.py", *words)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden") / "set"
    done = golden("make", folder, *CHOICE)
    assert done.returncode == 0, done.stderr
    return folder


def counts(printed: str, section: str) -> dict[str, int]:
    """A section's row of the table."""
    rows = [line.split() for line in printed.splitlines()]
    (row,) = (row for row in rows if row[0] == section)
    head = next(row for row in rows if row[0] == "section")
    return {name: int(count) for name, count in zip(head[1:], row[1:], strict=True)}


def test_made_again_everything_is_bit_equal(made):
    done = golden("compare", made, *CHOICE)
    assert done.returncode == 0, done.stdout + done.stderr
    for section, least in (("numbers", 800), ("help", 15)):
        row = counts(done.stdout, section)
        assert row["items"] == row["bit-equal"] >= least


def test_a_changed_number_and_a_changed_line_of_help_are_found(made, store, tmp_path):
    folder = tmp_path / "set"
    shutil.copytree(made, folder)
    for family in ("bert", "gpt2"):
        values = store.load(folder, "numbers", family)
        values[MAP][1, 2, 0] += 2e-6 * np.abs(values[MAP]).max()
        store.save(folder, "numbers", family, values)
    path = folder / "help" / "commands.json"
    pages = json.loads(path.read_text("utf-8"))
    name = "normlens map --help"
    pages[name] = pages[name].replace("Merge subwords into words.", "Merge subwords.")
    path.write_text(json.dumps(pages), "utf-8")

    done = golden("compare", folder, *CHOICE, "--ignore", "numbers/gpt2/alone/*")
    assert done.returncode == 1, done.stderr
    row = counts(done.stdout, "numbers")
    assert (row["differs"], row["ignored"], row["missing"], row["new"]) == (1, 1, 0, 0)
    assert counts(done.stdout, "help")["differs"] == 1
    assert f"differs   numbers/bert/{MAP}  2.0e-06 of the largest number" in done.stdout
    assert f"differs   help/commands/{name}" in done.stdout
    assert "Merge subwords into words." in done.stdout
    assert "numbers/gpt2/" not in done.stdout


def test_a_folder_without_a_set_is_refused(tmp_path):
    done = golden("compare", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds no golden set" in done.stderr
    (tmp_path / "mine.txt").write_text("mine")
    done = golden("make", tmp_path)
    assert done.returncode == 2
    assert "holds other files" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


# Verdicts ---------------------------------------------------------------------------------------

NUMBERS = np.array([1.0, np.nan, -4.0], dtype=np.float32)


def verdict(store, old, new, name: str = "a", *, exact_texts: bool = False) -> str:
    (found,) = store.differences("g", {name: old}, {name: new}, exact_texts=exact_texts)
    return found.verdict


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (NUMBERS.copy(), "bit-equal"),
        (NUMBERS + np.float32(3e-6), "within"),
        (NUMBERS + np.float32(6e-6), "differs"),
        (np.nan_to_num(NUMBERS), "differs"),
        (NUMBERS.astype(np.float64), "differs"),
        (NUMBERS[:2], "differs"),
        ("refused: InputError: no", "differs"),
    ],
)
def test_numbers_are_compared_with_the_largest(store, new, expected):
    assert verdict(store, NUMBERS, new) == expected


def test_whole_numbers_and_truth_values_are_exact(store):
    large = np.array([10**9, 5])
    assert verdict(store, large, large + np.array([0, 1])) == "differs"
    assert verdict(store, np.array([True]), np.array([False])) == "differs"


def test_parts_of_a_score_are_compared_with_the_whole_of_it(store):
    old = {"why/score/nodes": np.array([10.0]), "why/score/biases": np.array([1e-3])}
    new = {**old, "why/score/biases": np.array([1e-3 + 5e-6])}
    found = store.differences("g", old, new, exact_texts=False)
    assert [each.verdict for each in found] == ["bit-equal", "within"]
    alone = np.array([1e-3]), np.array([1e-3 + 5e-6])
    assert verdict(store, *alone) == "differs"
    assert verdict(store, np.array(2e-7), np.array(9e-7), "alone/completeness") == "within"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("ρ 0.125, 3 tokens", "ρ 0.125, 3 tokens", "bit-equal"),
        ("ρ 0.125,  3 tokens", "ρ 0.126, 3 tokens", "within"),
        ("ρ 0.125, 3 tokens", "ρ 0.127, 3 tokens", "differs"),
        ("ρ 0.125, 3 tokens", "ρ 0.125, 4 tokens", "differs"),
        ("ρ 0.125, 3 tokens", "ρ 0.125, 3 words", "differs"),
    ],
)
def test_decimals_in_texts_may_differ_in_the_last_digit(store, old, new, expected):
    assert verdict(store, old, new) == expected
    assert verdict(store, old, new, exact_texts=True) == expected.replace("within", "differs")


def test_missing_and_new_items(store):
    found = store.differences("g", {"a": "1", "b": "2"}, {"b": "2", "c": "3"}, exact_texts=True)
    assert {each.name: each.verdict for each in found} == {
        "g/a": "missing", "g/b": "bit-equal", "g/c": "new"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("refused: MapsFileError: written by an older NormLens", {"refused"}),
        ("refused: MapsFileError: two\nlines", {"missing", "new"}),
        ("CRASH: KeyError: 'tokens'", {"missing", "new"}),
    ],
)
def test_an_old_file_may_be_refused_in_one_line(store, line, expected):
    old = {"opened/maps.safetensors/allowed": NUMBERS, "opened/maps.safetensors/labels": "[]"}
    found = store.differences("g", old, {"opened/maps.safetensors": line}, exact_texts=False)
    assert {each.verdict for each in found} == expected
