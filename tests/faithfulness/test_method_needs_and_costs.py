"""What methods need of a model, what they cost, and that they leave it as it was."""

from __future__ import annotations

import sys

import pytest
from evaluate_examples import lens_of
from method_examples import asked

import normlens
from normlens.errors import (
    InputError,
    MissingDependencyError,
    UnknownScopeError,
    UnsupportedModelError,
)
from normlens.models.tiny import tiny_model
from normlens.studies.faithfulness.measure import default_methods
from normlens.studies.faithfulness.methods import method
from normlens.studies.faithfulness.questions import counted


def test_what_a_model_lacks_is_refused_before_it_runs():
    lens = lens_of("llama", "CausalLM")
    with pytest.raises(InputError):
        method("globenc").needs(lens)
    assert "globenc" not in default_methods(lens)[0]
    with pytest.raises(UnknownScopeError):
        method("rollout-LN7").needs(lens)
    with pytest.raises(InputError):
        method("rollout-weights").needs(normlens.load(tiny_model("deberta-v2", conv_kernel_size=3)))
    lens.layers[0].attention.value.__dict__["module"] = None
    with pytest.raises(UnsupportedModelError):
        method("value-zeroing").needs(lens)


def test_a_missing_captum_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    lens, _ = asked("pooler")
    chosen = method("integrated-gradients")
    with pytest.raises(MissingDependencyError):
        chosen.needs(lens)


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("normlens", 1, 0),
        ("vectors", 1, 0),
        ("rollout-weights", 1, 0),
        ("gradient-x-input", 1, 1),
        ("integrated-gradients", 1 + 50, 50),
        ("leave-one-out", 1 + 5, 0),
        ("value-zeroing", 1 + 7 + 7, 0),
        ("random", 0, 0),
    ],
)
def test_passes_are_counted_by_rows(name, forward, backward):
    if name == "integrated-gradients":
        pytest.importorskip("captum")
    lens, questions = asked("pooler")
    with counted(lens) as passes:
        method(name)(lens, questions[:1])
    assert passes.tolist() == [forward, backward]
    blocks = [*lens.adapter.blocks()]
    assert not any(block._forward_hooks for block in blocks)


def test_nothing_stays_on_a_model_when_a_method_fails(monkeypatch):
    lens, questions = asked("pooler")
    model = lens.adapter.whole

    def broken(*args, **kwargs):
        raise RuntimeError("broken")

    monkeypatch.setattr(model.classifier, "forward", broken)
    for name in ("normlens", "gradient-x-input", "integrated-gradients", "leave-one-out"):
        with counted(lens), pytest.raises(RuntimeError, match="broken"):
            method(name)(lens, questions)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
