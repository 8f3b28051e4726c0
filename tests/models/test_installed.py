"""Families of other installed packages, found through their entry points."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from installed_examples import FAMILY, install, python

from normlens.models import base, supported_families
from normlens.models.tiny import tiny_model

LOAD = """
import sys
import normlens
from normlens.models.tiny import tiny_model

assert "new_family" not in sys.modules
model = tiny_model("bert")
normlens.load(model)
assert "new_family" not in sys.modules, "a built-in family needs no other package"

lens = normlens.load({folder!r}, tokenizer={folder!r})
assert "new_family" in sys.modules
assert lens.model_type == "brand-new"
maps, expected = lens.maps(input_ids=[3, 9, 27]), normlens.load(model).maps(input_ids=[3, 9, 27])
assert (maps["ATTNRESLNFFRESLN-N"] == expected["ATTNRESLNFFRESLN-N"]).all()
print("loaded")
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A saved model whose type neither NormLens nor transformers knows."""
    from test_loading import tiny_tokenizer

    folder = tmp_path / "model"
    tiny_model("bert").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "brand-new"}))
    return folder


def test_a_model_of_an_installed_family_is_loaded(tmp_path, checkpoint):
    site = install(tmp_path / "site", "new-family", "new_family", FAMILY)
    done = python("-c", LOAD.format(folder=str(checkpoint)), path=site)
    assert done.stdout == "loaded\n", done.stderr
    # Where torchao is installed, it speaks of itself.
    said = [line for line in done.stderr.splitlines() if "torchao" not in line]
    assert not [line for line in said if "torch/utils/_pytree.py" not in line]


# In this process, whose registry is put back afterwards -------------------------------------------


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder for packages, of which NormLens has seen none yet."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(base, "_ADAPTERS", dict(base._ADAPTERS))
    monkeypatch.setattr(base, "_TINY", dict(base._TINY))
    monkeypatch.setattr(base, "_loaded", False)
    yield folder
    for module in folder.glob("*.py"):
        sys.modules.pop(module.stem, None)


def one_line(caplog) -> str:
    (record,) = caplog.records
    (line,) = record.getMessage().splitlines()
    return line


SIMPLE = """
import normlens
from normlens.families.bert import Bert

@normlens.register("simple-new")
class Simple(Bert): ...
"""
BROKEN = {
    "raises": 'raise RuntimeError("two\\nlines")',
    "imports what is not there": "import no_such_module",
    "is not Python": "def",
    "ends the process": "import sys; sys.exit(3)",
    "fails half-way": SIMPLE.replace("simple-new", "half-new") + "1 / 0",
    "registers no adapter": 'import normlens; normlens.register("x")(int)',
}


@pytest.mark.parametrize("code", BROKEN.values(), ids=BROKEN)
def test_a_package_that_fails_is_named_and_left_out(site, code, caplog):
    before = set(base._ADAPTERS)
    install(site, "broken-family", "broken_family", code)
    install(site, "simple-family", "simple_family", SIMPLE)
    assert "simple-new" in supported_families()
    line = one_line(caplog)
    assert "'broken-family' are left out" in line
    assert "importing broken_family failed" in line
    assert set(base._ADAPTERS) == {*before, "simple-new"}
    assert len(caplog.records) == 1
