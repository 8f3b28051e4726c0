"""A family is one file: what else there is finds it by itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from installed_examples import FAMILY, python

import normlens
from normlens.families.bert import Bert
from normlens.models import base, supported_families
from normlens.models.tiny import ENCODER, tiny_families


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder with a copy of NormLens that has one more file in `families`."""
    folder = tmp_path_factory.mktemp("src")
    copy = folder / "normlens"
    shutil.copytree(
        Path(normlens.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    (copy / "families" / "brand_new.py").write_text(FAMILY)
    return folder


def test_one_file_is_in_the_table(package):
    done = python("-m", "normlens", "models", "--json", path=package)
    assert done.returncode == 0, done.stderr
    families = {row["model_type"]: row for row in json.loads(done.stdout)["families"]}
    assert families["brand-new"] == {**families["bert"], "model_type": "brand-new"}


def test_the_folder_holds_families_only():
    """Every file registers an adapter; what several share is beside the folder."""
    folder = Path(normlens.__file__).parent / "families"
    homes = {adapter.__module__ for adapter in supported_families().values()}
    files = list(folder.glob("*.py"))
    assert files
    for file in files:
        if file.stem != "__init__":
            assert f"normlens.families.{file.stem}" in homes, file.name


def test_a_family_that_transformers_does_not_have_is_not_listed(monkeypatch):
    """Its file may be newer than the installed transformers."""
    monkeypatch.setattr(base, "_ADAPTERS", dict(base._ADAPTERS))
    monkeypatch.setattr(base, "_TINY", dict(base._TINY))
    future = type("Future", (Bert,), {"__module__": "normlens.families.future"})
    normlens.register("of-the-future", tiny=ENCODER)(future)
    assert "of-the-future" not in supported_families()
    assert "of-the-future" not in tiny_families()
    theirs = type("Theirs", (Bert,), {"__module__": "their_package.family"})
    normlens.register("of-the-future")(theirs)
    assert supported_families()["of-the-future"] is theirs
