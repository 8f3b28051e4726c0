"""``make front-end``: what `make test` does with the front end, tried with a stand-in for npm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = "src/normlens/viewer/static/viewer.js"
#: Installs nothing, writes its words to a file, and builds "new" or fails where it is told to.
NPM = """#!/bin/sh
echo "$*" >> "$NPM_LOG"
case "$*" in
  ci*) mkdir -p node_modules && touch node_modules/.package-lock.json ;;
  "run build -- --out "*) printf new > "$5"; printf bill > "${5%.js}.cdx.json" ;;
esac
test "$*" != "$NPM_FAILS"
"""
TOOLS = ("sh", "make", "mktemp", "rm", "cmp", "touch", "mkdir")

pytestmark = pytest.mark.skipif(
    not (ROOT / "Makefile").is_file() or any(shutil.which(tool) is None for tool in TOOLS),
    reason="needs the repository's Makefile and make",
)


@pytest.fixture
def clone(tmp_path):
    """A folder with as much of the repository as the target needs, and only the tools it needs."""
    for name in ("Makefile", "viewer/package.json", "viewer/package-lock.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / BUILT).parent.mkdir(parents=True)
    (tmp_path / BUILT).write_text("new")
    (tmp_path / "viewer/viewer.cdx.json").write_text("bill")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    return tmp_path


def made(clone: Path, fails: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name[:4] != "MAKE"}
    environment |= {"PATH": str(clone / "bin"), "NPM_LOG": str(clone / "calls"), "NPM_FAILS": fails}
    command = ["make", "front-end"]
    return subprocess.run(
        command, cwd=clone, env=environment, capture_output=True, text=True, check=False
    )


def with_npm(clone: Path) -> None:
    (clone / "bin" / "npm").write_text(NPM)
    (clone / "bin" / "npm").chmod(0o755)


def test_types_tests_and_built_file_are_checked(clone):
    with_npm(clone)
    done = made(clone)
    assert done.returncode == 0, done.stderr
    first, *others, last = (clone / "calls").read_text().splitlines()
    assert first.startswith("ci ")
    assert others == ["run check", "test"]
    assert last.startswith("run build -- --out ")
    assert (clone / BUILT).read_text() == "new"


@pytest.mark.parametrize("step", ["run check", "test"])
def test_what_fails_is_not_passed_over(clone, step):
    with_npm(clone)
    assert made(clone, fails=step).returncode != 0
