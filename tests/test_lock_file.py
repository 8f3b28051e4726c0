"""The lock file: an exact version of everything that the package and its tests need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
requirements = pytest.importorskip("packaging.requirements")
utils = pytest.importorskip("packaging.utils")


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned)
    return {
        utils.canonicalize_name(name): version
        for name, version in (line.split("==") for line in pinned)
    }


def needed(project: dict, extra: str) -> list[str]:
    """What an extra asks for, and the extras that it names."""
    found = []
    for text in project["optional-dependencies"][extra]:
        requirement = requirements.Requirement(text)
        if requirement.name == project["name"]:
            found += [item for inner in requirement.extras for item in needed(project, inner)]
        else:
            found.append(text)
    return found


def test_every_dependency_is_locked_at_a_version_that_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = locked()
    for text in [*project["dependencies"], *needed(project, "dev")]:
        requirement = requirements.Requirement(text)
        version = versions[utils.canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), text


def test_it_pins_neither_the_package_nor_a_build() -> None:
    versions = locked()
    assert "normlens" not in versions
    assert not any("+" in version for version in versions.values())
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert versions["torch"] == pinned[1]
