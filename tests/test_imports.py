"""What commands that need no model import, and that modules can be imported in any order."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import normlens
from normlens.corpus.runs.runs import run
from normlens.papers.reproduce import reproduce

SLOW = {"torch", "transformers", "ray"}
#: Runs a command, and says on the last line what it has imported.
RUNNER = """
import json, sys
from normlens.cli import main
status = main(sys.argv[1:])
print()
print(json.dumps({"status": status, "roots": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


def imported_by(*words: str | Path) -> set[str]:
    """The packages that a successful command has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, words)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == 0, done.stderr
    return set(found["roots"])
