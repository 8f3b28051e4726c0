"""The lock file: exact versions, with hashes, of all that the package and its tests need."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
requirements = pytest.importorskip("packaging.requirements")
utils = pytest.importorskip("packaging.utils")

#: A requirement, perhaps for some platforms only, and the hashes that its files may have.
ENTRY = re.compile(r"(?P<pin>[\w.-]+==[\w.]+(?: ; [^\\]+)?)(?P<hashes>(?: \\\n    --hash=\S+)*)\n")


def entries() -> list[tuple[str, list[str]]]:
    text = (ROOT / "requirements.lock").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    found = list(ENTRY.finditer(text))
    assert "".join(entry[0] for entry in found) == text  # there is nothing else
    return [(entry["pin"], re.findall(r"--hash=(\S+)", entry["hashes"])) for entry in found]


def locked() -> dict[str, str]:
    """The versions that are installed on this platform."""
    versions = {}
    for pin, _ in entries():
        requirement = requirements.Requirement(pin)
        if requirement.marker is None or requirement.marker.evaluate():
            name = utils.canonicalize_name(requirement.name)
            assert name not in versions
            versions[name] = str(requirement.specifier).removeprefix("==")
    return versions


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
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, build = read["project"], read["build-system"]["requires"]
    versions = locked()
    for text in [*build, *project["dependencies"], *needed(project, "dev")]:
        requirement = requirements.Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            version = versions[utils.canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), text


def test_what_the_dependencies_need_is_locked() -> None:
    """pip takes nothing without a hash where anything has one."""
    versions = locked()
    compared = 0
    for name, version in versions.items():
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        if installed.version.partition("+")[0] != version:
            continue  # it may need other packages
        compared += 1
        for text in installed.requires or ():
            requirement = requirements.Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                locked_version = versions[utils.canonicalize_name(requirement.name)]
                assert requirement.specifier.contains(locked_version, prereleases=True), text
    assert compared > 50


def test_every_version_has_hashes() -> None:
    for pin, hashes in entries():
        assert hashes, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), pin
        assert len(set(hashes)) == len(hashes), pin


def test_it_pins_neither_the_package_nor_a_build() -> None:
    versions = locked()
    assert "normlens" not in versions
    assert not any("+" in version for version in versions.values())
    pinned = re.findall(r"^(\w+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert "torch" in dict(pinned)
    for name, version in pinned:
        assert versions.get(name, version) == version
