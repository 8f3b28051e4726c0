"""The golden set: made twice it is the same, and what changes is found by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from forking import run_python

ROOT = Path(__file__).resolve().parents[2]
CHOICE = ("--only", "numbers,help", "--families", "bert,gpt2", "-j", 0)


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
