"""The survey of all model types, on a few of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from forking import run_python

pytest.importorskip("resource")  # limits of memory, which Windows has not

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import family_survey

        yield family_survey
    finally:
        sys.path.remove(str(ROOT / "tools"))


@pytest.mark.parametrize(
    ("model_type", "verdict", "detail"),
    [
        ("nomic_bert", "supported", "completeness "),
        ("bart", "supported", "completeness "),
        ("gpt_neo", "supported", "completeness "),  # by its tiny configuration alone
        ("mamba", "refused", "its layers are state-space models"),
        ("llava", "refused", "model.language_model ('llama')"),
        ("xlnet", "unknown", '@normlens.register("xlnet")'),
        ("detr", "refused", "it detects objects"),  # with or without the package of its backbone
    ],
)
def test_what_becomes_of_a_type(tool, model_type, verdict, detail):
    outcome = tool.survey(model_type)
    assert (outcome.verdict, detail in outcome.detail) == (verdict, True), outcome
    assert "\n" not in outcome.line


def test_a_wrong_adapter_fails(tool, monkeypatch):
    """Its maps are not complete, and an error that is no refusal is a failure of the family."""
    from normlens.families.llama import Llama
    from normlens.models import base

    monkeypatch.setattr(base, "_ADAPTERS", {**base._ADAPTERS, "doge": Llama, "olmo2": Llama})
    outcome = tool.survey("doge")
    assert outcome.verdict == "FAILED"
    assert "parts and bias miss" in outcome.detail
    outcome = tool.survey("olmo2")
    assert outcome.verdict == "FAILED"
    assert outcome.detail.startswith("its tiny configuration: ")


def test_the_walk_prints_and_writes_what_it_saw(tmp_path):
    target = tmp_path / "survey.json"
    tool = ROOT / "tools" / "family_survey.py"
    run = run_python(tool, "--only", "mamba2", "--json", target)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].split()[:2] == ["mamba2", "refused"]
    assert lines[-1].endswith("0 supported, 1 refused, 0 unknown, 0 not buildable, 0 FAILED")
    assert [row["verdict"] for row in json.loads(target.read_text())] == ["refused"]
