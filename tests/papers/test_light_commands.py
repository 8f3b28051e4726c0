"""Commands that need no model do not wait for torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from quick_reports import drawing_nothing

from normlens.studies.papers.reproduce import reproduce

RUNNER = """
import json, sys
from normlens.cli import main
status = main(sys.argv[1:])
roots = sorted({name.partition(".")[0] for name in sys.modules})
print()
print(json.dumps({"status": status, "roots": roots}))
"""


@pytest.fixture(scope="module")
def results(tiny_bert, letters, tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "out"
    how = {"device": "cpu"}
    with drawing_nothing():
        reproduce("mixing", tiny_bert, letters, out, limit=6, execution=how, resamples=100)
    return out


def packages_of(*words: str | Path) -> set[str]:
    """The packages that a successful command has imported when it ends."""
    command = [sys.executable, "-c", RUNNER, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == 0, done.stderr
    assert "normlens" in found["roots"]
    return set(found["roots"])


@pytest.mark.parametrize(
    "words",
    [
        ("reproduce", "report", "{out}"),
        ("reproduce", "compare", "{out}", "{out}", "--out", "{new}"),
        ("status", "{run}"),
        ("check", "{run}"),
        ("query", "{run}", "SELECT count(*) FROM sequences"),
        ("query", "{run}", "SELECT count(*) FROM norms"),  # merged by a measure's SQL
    ],
    ids=lambda words: words[0],
)
def test_no_torch(words, results, tmp_path):
    (run,) = (results / "runs").glob("*-masked")
    places = {"out": results, "run": run, "new": tmp_path / "comparison"}
    assert not packages_of(*(word.format(**places) for word in words)) & {
        "torch",
        "transformers",
        "ray",
    }
