"""Half precision is held to float32 once: terms that its rounding would hide are missed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from heads import every_head, headed
from pair_models import FAMILIES, TARGET, generating, source_of
from torch import nn

import normlens
from normlens.cli.map import completeness
from normlens.errors import CompletenessError, UnsupportedModelError
from normlens.families.bert import Bert
from normlens.frozen.attention import FrozenAttention
from normlens.frozen.feedforward import FrozenFeedForward, FrozenParallelFeedForward
from normlens.frozen.network import FrozenDense
from normlens.frozen.norm import FrozenBranch, FrozenNorm
from normlens.frozen.parts import Bias
from normlens.frozen.step import Scored
from normlens.layers import ANY, CAUSAL, Linear
from normlens.models.base import read_head
from normlens.models.tiny import (
    tiny_config,
    tiny_families,
    tiny_model,
    tiny_signal_families,
)
from normlens.pipeline import guard as guarding
from normlens.pipeline.guard import TOLERANCE, Guard
from normlens.trace import wide_copies

IDS = [5, 17, 31, 8, 44, 23, 12]
HALF = [torch.bfloat16, torch.float16]
#: One head of every family that has any.
HEADS = dict(reversed(every_head()))


def explained(lens: Any, **options: Any) -> Any:
    head = read_head(lens.adapter)
    if head.reads == ANY and head.task != CAUSAL:
        options.setdefault("position", 3)
    return lens.explain(input_ids=IDS, **options)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The copies in float32 that are made from now on, by class."""
    made: list[str] = []
    copied = wide_copies._copied

    def count(adapter: Any, module: nn.Module, twins: Any) -> Any:
        made.append(type(module).__name__)
        return copied(adapter, module, twins)

    monkeypatch.setattr(wide_copies, "_copied", count)
    return made


# No false alarm -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("family", tiny_families())
def test_every_family_agrees_with_itself_in_float32(family, dtype):
    task = HEADS.get(family)
    model = tiny_model(family).to(dtype) if task is None else headed(family, task, dtype)
    lens = normlens.load(model, tokenizer=False)
    lens.maps(input_ids=[IDS, IDS[:4]])  # padded
    if task is not None:
        explained(lens)
    compared = list(lens.guard.compared.values())
    missing = {one.name: one.reason for one in compared if one.reason is not None}
    assert list(missing) == (["the head"] if family == "squeezebert" else [])
    errors = [one.error for one in compared if one.reason is None]
    assert max(errors) < TOLERANCE / 20
    assert len(errors) <= lens.n_layers + 1


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_both_stacks_agree_with_themselves_in_float32(family, dtype):
    lens = normlens.load(generating(family, dtype), tokenizer=False)
    why = lens.explain(**source_of(family), decoder_input_ids=TARGET)
    names = [one.name for one in lens.guard.compared.values()]
    assert names == ["encoder layer 0", "decoder layer 0", "the head"]
    assert max(one.error for one in lens.guard.compared.values()) < TOLERANCE / 20
    said = why.provenance["compared_with_float32"]
    assert said == f"2 of {lens.n_layers} layers and the head ran again in float32"


@pytest.mark.parametrize("family", tiny_signal_families())
def test_pictures_and_sound_agree_with_float32(family):
    values = torch.randn(3, 12, 12) if "image_size" in tiny_config(family) else torch.randn(270)
    lens = normlens.load(tiny_model(family).to(torch.bfloat16), tokenizer=False)
    lens.maps(values)
    assert all(one.error < TOLERANCE / 20 for one in lens.guard.compared.values())


@pytest.mark.parametrize("rule", ["ig", "ig-bias", "gradient", "shapley"])
def test_every_rule_is_compared(rule):
    for family in ("bert", "llama", "gpt_neox", "mobilebert", "gpt_oss", "mixtral"):
        lens = normlens.load(tiny_model(family).to(torch.bfloat16), tokenizer=False)
        lens.maps(input_ids=IDS, nonlinearity=rule, scopes="ATTN-N")
        assert {of for of, _ in lens.guard.compared} == {rule}
        assert all(one.error < TOLERANCE / 20 for one in lens.guard.compared.values())


# Lost terms ---------------------------------------------------------------------------------------


def without_beta_in_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenNorm, "score", lambda self, g: Scored(self.adjoint(g)))


def without_output_bias_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    on_parts = FrozenAttention.on_parts

    def lose(self: FrozenAttention, parts: Any) -> Any:
        behind = on_parts(self, parts)
        return replace(behind, bias=Bias.none(behind.own))

    monkeypatch.setattr(FrozenAttention, "on_parts", lose)


def without_down_bias_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FrozenFeedForward,
        "outgoing",
        property(lambda self: Bias.dense(self.neurons.bias @ self.ff.down.weight)),
    )


def without_value_bias_in_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenAttention, "_unowned_read", None)


def without_beta_beside_the_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: FrozenParallelFeedForward, g: Any) -> Scored:
        block = self.block.score(g)
        norm = self.norm.score(block.arriving)
        return Scored(norm.arriving, block.passed, block.unowned)

    monkeypatch.setattr(FrozenParallelFeedForward, "score", lose)


def without_up_bias_in_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    through = Bias.through
    monkeypatch.setattr(Bias, "through", lambda self, linear: through(self, Linear(linear.weight)))


def without_biases_of_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    score = FrozenBranch.score
    monkeypatch.setattr(
        FrozenBranch, "score", lambda self, g: replace(score(self, g), unowned=None)
    )


def without_beta_by_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = Bert.norms
    monkeypatch.setattr(
        Bert, "norms", lambda self, block: tuple(replace(n, beta=None) for n in norms(self, block))
    )


def without_bias_of_the_pooler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenDense, "unowned", None)


def maps_of(lens: Any) -> Any:
    return lens.maps(input_ids=IDS)


LOST = [
    (without_beta_in_scores, "gpt2", "CausalLM", explained),
    (without_output_bias_in_parts, "gpt2", "CausalLM", maps_of),
    (without_down_bias_in_parts, "bert", "MaskedLM", maps_of),
    (without_value_bias_in_scores, "opt", "CausalLM", explained),
    (without_beta_beside_the_attention, "gpt_neox", "CausalLM", explained),
    (without_up_bias_in_shares, "gpt2", "CausalLM", explained),
    (without_biases_of_a_branch, "mobilebert", "MaskedLM", explained),
    (without_beta_by_the_adapter, "bert", "MaskedLM", maps_of),
    (without_bias_of_the_pooler, "bert", "SequenceClassification", explained),
]


@pytest.mark.parametrize(("lose", "family", "task", "call"), LOST)
def test_a_lost_term_that_rounding_hides_is_missed(lose, family, task, call, monkeypatch):
    model = headed(family, task, torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter *= 0.02  # as small beside the vectors as the rounding of bfloat16
    model = model.to(torch.bfloat16)
    lens = normlens.load(model, tokenizer=False)
    lose(monkeypatch)
    with monkeypatch.context() as without:
        without.setattr(Guard, "is_due", lambda *_: False)
        call(lens)  # its own tolerance lets it pass
    for _ in range(2):  # what failed is not taken for done
        with pytest.raises(CompletenessError, match="misses its own modules run in float32") as at:
            call(lens)
        assert "\n" not in str(at.value)
    monkeypatch.undo()
    call(lens)


def test_a_linear_map_that_is_not_one_is_still_named():
    """What says which module it is comes first."""
    lens = normlens.load(tiny_model("bert").to(torch.bfloat16), tokenizer=False)
    module = lens.model.encoder.layer[0].attention.output.dense
    module.register_forward_hook(lambda _, __, output: output * 1.5)
    with pytest.raises(UnsupportedModelError, match="does not compute x W"):
        lens.maps(input_ids=IDS)


# Once, and at what cost ---------------------------------------------------------------------------


def test_one_layer_of_each_kind_runs_again_and_once(monkeypatch):
    made = counted(monkeypatch)
    model = headed("gemma2", "CausalLM", torch.bfloat16, num_hidden_layers=6)
    lens = normlens.load(model, tokenizer=False)
    runs: list[nn.Module] = []
    for layer in lens.adapter.blocks():
        layer.register_forward_hook(lambda block, *_: runs.append(block))
    first = lens.maps(input_ids=IDS)
    assert made == 2 * ["Gemma2DecoderLayer"]  # with a window, and without
    assert len(runs) == 6 + 2
    assert first.provenance["compared_with_float32"] == "2 of 6 layers ran again in float32"
    assert "2 of 6 layers ran again in float32" in completeness(first)
    assert lens.maps(input_ids=IDS[:5]).provenance == {
        **first.provenance,
        "completeness": pytest.approx(0, abs=0.1),
    }
    explained(lens)
    assert made[2:] == ["Gemma2ForCausalLM"]
    explained(lens)
    lens.maps(input_ids=[IDS, IDS[:3]])
    assert len(made) == 3
    assert "Guard(layer 0 (ig): " in repr(lens.guard)


def test_layers_that_were_not_asked_for_are_compared_when_they_are():
    lens = normlens.load(tiny_model("modernbert").to(torch.bfloat16), tokenizer=False)
    lens.maps(input_ids=IDS, layers=[0])
    assert [one.name for one in lens.guard.compared.values()] == ["layer 0"]
    lens.maps(input_ids=IDS)
    assert [one.name for one in lens.guard.compared.values()] == ["layer 0", "layer 1"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_precisions_have_their_own_tolerance(dtype, monkeypatch):
    made = counted(monkeypatch)
    lens = normlens.load(headed("bert", "MaskedLM", dtype), tokenizer=False)
    assert "compared_with_float32" not in lens.maps(input_ids=IDS).provenance
    explained(lens)
    assert made == []


def test_nothing_is_compared_while_work_is_recorded(monkeypatch):
    lens = normlens.load(tiny_model("bert").to(torch.bfloat16), tokenizer=False)
    assert lens.guard.is_due("ig", "anything")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not lens.guard.is_due("ig", "anything")


def test_threads_compare_once(monkeypatch):
    made = counted(monkeypatch)
    lens = normlens.load(tiny_model("bert").to(torch.bfloat16), tokenizer=False)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: lens.maps(input_ids=IDS[:n]), [3, 4, 5, 6]))
    assert made == ["BertLayer"]


def test_the_model_stays_as_it_is():
    model = headed("gpt2", "CausalLM", torch.bfloat16)
    before = {name: (p, p.data_ptr(), p.clone()) for name, p in model.named_parameters()}
    attributes = [sorted(vars(module)) for module in model.modules()]
    explained(normlens.load(model, tokenizer=False))
    for name, parameter in model.named_parameters():
        same, place, values = before[name]
        assert parameter is same
        assert parameter.data_ptr() == place
        assert torch.equal(parameter, values)
    assert [sorted(vars(module)) for module in model.modules()] == attributes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_layers_of_one_kind_may_hold_other_numbers():
    layers = normlens.load(tiny_model("gpt2"), tokenizer=False).layers
    other = normlens.load(tiny_model("gpt2", activation_function="relu"), tokenizer=False).layers
    assert guarding.kind_of(layers[0]) == guarding.kind_of(layers[1])
    assert guarding.kind_of(layers[0]) != guarding.kind_of(other[0])


# What cannot be compared --------------------------------------------------------------------------


def test_why_a_layer_was_not_compared_is_said():
    model = headed("bert", "MaskedLM", torch.bfloat16)
    model.bert.encoder.layer[0].lock = threading.Lock()
    lens = normlens.load(model, tokenizer=False)
    maps = lens.maps(input_ids=IDS)
    said = maps.provenance["compared_with_float32"]
    assert said == "not compared: layer 0: cannot pickle '_thread.lock' object"
    assert said in completeness(maps)
    both = explained(lens).provenance["compared_with_float32"]
    assert both == f"the head ran again in float32; {said}"


def test_quantised_weights_are_not_compared():
    model = tiny_model("bert").to(torch.bfloat16)
    packed = nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    for layer in model.encoder.layer:
        layer.packed = packed
    said = normlens.load(model, tokenizer=False).maps(input_ids=IDS).provenance
    assert "layer 0: its weights are quantised or offloaded" in said["compared_with_float32"]


def test_a_cache_that_a_head_switches_on_is_off():
    """Its model hands `use_cache` on to its body, and a layer is run a second time."""
    lens = normlens.load(headed("granitemoe", "CausalLM", torch.float32), tokenizer=False)
    assert explained(lens, memory_limit=100).completeness < 1e-5


def test_vectors_of_texts_are_compared(minilm, monkeypatch):
    lens = normlens.load("minilm", device="cpu", dtype="bfloat16")
    lens.cosine("A small house.", "A tiny home.")
    assert [one.name for one in lens.guard.compared.values()] == ["layer 0", "the pooling"]
    lost = normlens.load("minilm", device="cpu", dtype="bfloat16")
    monkeypatch.setattr(FrozenNorm, "unowned", None)
    with pytest.raises(CompletenessError, match="in vectors and biases"):
        lost.cosine("A small house.", "A tiny home.")
