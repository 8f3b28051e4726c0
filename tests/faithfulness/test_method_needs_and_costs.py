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
from normlens.options import AnalysisOptions
from normlens.studies.faithfulness.measure import default_methods
from normlens.studies.faithfulness.methods import MethodOptions, method
from normlens.studies.faithfulness.options import NAMES, checked_name
from normlens.studies.faithfulness.questions import Passes, counted


def test_names_that_do_not_exist_are_listed():
    with pytest.raises(InputError):
        method("shap")
    with pytest.raises(InputError):
        checked_name("rollout-")
    assert checked_name(" GlobEnc ") == "globenc"
    for name in NAMES:
        assert method(name).name == name


def test_what_a_model_lacks_is_refused_before_it_runs():
    lens = lens_of("llama", "CausalLM")
    with pytest.raises(InputError):
        method("globenc").needs(lens)
    assert "globenc" not in default_methods(lens)[0]
    with pytest.raises(UnknownScopeError):
        method("rollout-LN7").needs(lens)
    with pytest.raises(InputError):
        method("rollout-weights")(normlens.load(tiny_model("deberta-v2", conv_kernel_size=3)), [])
    lens.layers[0].attention.value.__dict__["module"] = None
    with pytest.raises(UnsupportedModelError):
        method("value-zeroing").needs(lens)


def test_a_missing_captum_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    lens, questions = asked("pooler")
    chosen = method("integrated-gradients")
    for call in (chosen.needs, lambda lens: chosen(lens, questions)):
        with pytest.raises(MissingDependencyError):
            call(lens)


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
    with counted(lens) as counter:
        method(name)(lens, questions[:1])
    assert counter.passes == Passes(forward, backward)
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


def test_analysis_options_reach_the_lens(monkeypatch):
    lens, questions = asked("pooler")
    seen = []
    analyse = type(lens).analyse

    def watched(self, encoded, options=AnalysisOptions(), **keywords):
        seen.append(options)
        return analyse(self, encoded, options, **keywords)

    monkeypatch.setattr(type(lens), "analyse", watched)
    method("rollout-LN1")(lens, questions, MethodOptions(batch_size=2))
    assert [one.batch_size for one in seen] == [2]
    with pytest.raises(InputError):
        MethodOptions(steps=0)
