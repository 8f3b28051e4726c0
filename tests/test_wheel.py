"""What a wheel holds and says of itself: all of the package, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from normlens.cli.tools import SITE_PAGES

pytest.importorskip("hatchling", reason="the build backend is not installed")
metadata = pytest.importorskip("packaging.metadata")

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="what belongs to the package is what git knows"
)


def built(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with zipfile.ZipFile(built(tmp_path_factory.mktemp("dist"))) as archive:
        yield archive


def test_a_wheel_that_is_built_again_has_the_same_bytes(wheel, tmp_path):
    assert built(tmp_path).read_bytes() == Path(wheel.filename).read_bytes()


def test_it_holds_the_package_and_nothing_else(wheel):
    names = set(wheel.namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/normlens"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    package = {path.removeprefix("src/") for path in tracked if (ROOT / path).exists()}
    assert {"normlens/viewer/static/viewer.js", "normlens/py.typed"} <= package
    help_pages = {f"normlens/help/{name}.md" for name in SITE_PAGES}
    information = {name for name in names if name.startswith("normlens-")}
    assert names - information == package | help_pages


def test_its_bill_of_materials_names_what_the_front_end_contains(wheel):
    (name,) = (name for name in wheel.namelist() if "/sboms/" in name)
    bill = json.loads(wheel.read(name))
    notices = wheel.read("normlens/viewer/static/viewer.js").decode().partition("*/")[0]
    listed = {f"{each['name']} {each['version']}" for each in bill["components"]}
    assert len(listed) > 3
    assert listed == set(re.findall(r"[\w@/.-]+ \d+\.\d+\.\d+", notices))


def test_its_metadata_are_valid(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    read = metadata.Metadata.from_email(wheel.read(name), validate=True)
    assert read.name == "normlens"
    assert read.license_expression == "Apache-2.0"
    assert read.description_content_type == "text/markdown"
    assert read.description.startswith("# NormLens")
    assert read.project_urls
    assert all(url.startswith("https://") for url in read.project_urls.values())
    assert "docs" in read.provides_extra
