"""Which ablations a family has, and one line where it has not."""

from __future__ import annotations

import pytest
from ablation_examples import FAMILIES, lens_on

from normlens.errors import InputError
from normlens.studies.ablation.options import CONTROLS, DRAWS
from normlens.studies.ablation.plan import Plan

POST = ["ATTN", "RES1", "LN1", "FF", "RES2", "LN2", "LAYER"]
PRE = ["(LN)", "ATTN", "RES1", "LN", "FF", "RES2", "LAYER"]
COMPONENTS = {
    "bert": POST,
    "gpt2": PRE,
    "llama": PRE,
    "gemma2": ["(LN)", "ATTN", "LN1", "RES1", "LN2", "FF", "LN3", "RES2", "LAYER"],
    "olmo2": ["ATTN", "LN1", "RES1", "FF", "LN2", "RES2", "LAYER"],
    "gptj": ["(LN)", "ATTN", "FF", "RES", "LAYER"],
    "gpt_neox": ["(LN)", "ATTN", "FF", "(LN)FF", "RES", "LAYER"],
}


def plan_of(family: str, **settings: object) -> Plan:
    task = dict(FAMILIES)[family]
    return Plan(lens_on(family, task, **settings).layers, family)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", COMPONENTS)
def test_components_are_the_steps_of_the_layers(family):
    components = plan_of(family).components()
    assert list(components) == COMPONENTS[family]
    assert set(components.values()) == {(0, 1)}


def test_each_layer_alone_and_all_together():
    plan = plan_of("bert")
    found = plan.ablations(components=["FF"], kinds=["zero", "mean"])
    assert [(a.kind, a.layers) for a in found] == [
        ("zero", (0,)),
        ("zero", (1,)),
        ("zero", (0, 1)),
        ("mean", (0,)),
        ("mean", (1,)),
        ("mean", (0, 1)),
    ]
    each = plan.ablations(components=["FF"], kinds=["zero"], together=False)
    assert [a.layers for a in each] == [(0,), (1,)]
    together = plan.ablations(components=["FF"], kinds=["zero"], each=False)
    assert [a.layers for a in together] == [(0, 1)]
    one = plan.ablations(components=["FF"], kinds=["zero"], each=False, layers=[1])
    assert [a.layers for a in one] == [(1,)]


def test_special_dimensions_come_with_their_draws():
    found = plan_of("bert").ablations(kinds=["lowest-gamma"])
    assert {a.component for a in found} == {"LN2"}
    controls = [a for a in found if a.kind == CONTROLS["lowest-gamma"]]
    assert len(found) == 3 * (1 + DRAWS)
    assert [a.draw for a in controls if a.layers == (0,)] == list(range(DRAWS))


def test_random_dimensions_are_seeded_and_never_the_special_ones():
    plan = plan_of("bert", hidden_size=512)
    special = set(plan.dimensions(0, "LN2", "lowest-gamma").tolist())
    draws = [
        plan.dimensions(0, "LN2", "random-lowest-gamma", draw, seed).tolist()
        for seed in (0, 1)
        for draw in range(4)
    ]
    assert len(special) == 5
    assert all(len(set(draw)) == 5 for draw in draws)
    assert not any(special & set(draw) for draw in draws)
    assert len({tuple(draw) for draw in draws}) == len(draws)
    assert draws[2] == plan.dimensions(0, "LN2", "random-lowest-gamma", 2, 0).tolist()


REFUSED = [
    ("gpt2", dict(components=["LN2"])),
    ("gpt2", dict(kinds=["lowest-gamma"])),
    ("bert", dict(components=["LN1"], kinds=["outliers"])),
    ("bert", dict(kinds=["outliers"])),
    ("bert", dict(kinds=["random-outliers"])),
    ("bert", dict(components=["FF"], kinds=["nonsense"])),
    ("olmo", dict(components=["LN"], kinds=["no-affine"])),
    ("granite", dict(components=["RES1"])),
    ("modernbert", dict(components=["(LN)"], layers=[0])),
]


@pytest.mark.parametrize(("family", "asked"), REFUSED)
def test_what_a_family_does_not_have_is_refused(family, asked):
    with pytest.raises(InputError):
        plan_of(family).ablations(**asked)  # type: ignore[arg-type]


def test_a_sum_with_a_factor_is_not_taken_apart():
    plan = plan_of("granite")
    assert not {"RES1", "RES2"} & set(plan.components())
    assert {"ATTN", "FF", "LAYER"} <= set(plan.components())


def test_what_no_module_returns_stays():
    """Granite adds its shared expert to the others inside the layer."""
    plan = Plan(lens_on("granitemoeshared", "CausalLM").layers, "tiny")
    assert "FF" not in plan.components()
    with pytest.raises(InputError):
        plan.place(0, "FF")
