"""Half precision is held to float32 once: terms that its rounding would hide are missed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from heads import every_head, headed, tried_families
from one_case import in_one_case
from pair_models import FAMILIES, TARGET, generating, source_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import normlens
from normlens.cli.map import completeness
from normlens.errors import CompletenessError
from normlens.explain import network
from normlens.families.bert import Bert
from normlens.frozen.attention import FrozenAttention
from normlens.frozen.feedforward import FrozenFeedForward, FrozenParallelFeedForward
from normlens.frozen.parts import FrozenNorm, Scored
from normlens.layers import ANY, CAUSAL
from normlens.models.base import read_head
from normlens.models.tiny import (
    tiny_families,
    tiny_model,
)
from normlens.pipeline import comparisons
from normlens.pipeline.comparisons import TOLERANCE, Float32Check

IDS = [5, 17, 31, 8, 44, 23, 12]
HALF = [torch.bfloat16, torch.float16]
EVERY_FAMILY = [(family, torch.bfloat16) for family in tiny_families()]
EVERY_KIND = [(family, torch.float16) for family in tried_families()]
#: One head of every family that has any.
HEADS = dict(reversed(every_head()))


def explained(lens: Any, **options: Any) -> Any:
    head = read_head(lens.adapter)
    if head.reads == ANY and head.task != CAUSAL:
        options.setdefault("position", 3)
    return lens.explain(input_ids=IDS, **options)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What runs in float32 from now on: blocks by class, and "the end"."""
    ran: list[str] = []
    run_again, end = comparisons.run_again, comparisons.end_in_float32

    def count(adapter: Any, index: int, block: nn.Module, call: Any) -> Any:
        ran.append(type(block).__name__)
        return run_again(adapter, index, block, call)

    def count_end(*given: Any) -> Any:
        ran.append("the end")
        return end(*given)

    monkeypatch.setattr(comparisons, "run_again", count)
    monkeypatch.setattr(network, "end_in_float32", count_end)
    return ran


# No false alarm -----------------------------------------------------------------------------------


@in_one_case(("family", "dtype"), [*EVERY_FAMILY, *EVERY_KIND])
def test_every_family_agrees_with_itself_in_float32(family, dtype):
    task = HEADS.get(family)
    model = tiny_model(family).to(dtype) if task is None else headed(family, task, dtype)
    lens = normlens.load(model, tokenizer=False)
    lens.maps(input_ids=[IDS, IDS[:4]])  # padded
    if task is not None:
        explained(lens)
    compared = list(lens.float32_check.compared.values())
    assert not [one.reason for one in compared if one.reason is not None]
    assert max(one.error for one in compared) < TOLERANCE / 20
    assert len(compared) <= 2 * lens.n_layers + 1


@in_one_case("dtype", HALF, ids=str)
@in_one_case("family", FAMILIES)
def test_both_stacks_agree_with_themselves_in_float32(family, dtype):
    lens = normlens.load(generating(family, dtype), tokenizer=False)
    why = lens.explain(**source_of(family), decoder_input_ids=TARGET)
    names = [one.name for one in lens.float32_check.compared.values()]
    assert names == ["encoder layer 0", "decoder layer 0", "the head"]
    assert max(one.error for one in lens.float32_check.compared.values()) < TOLERANCE / 20
    said = why.provenance["compared_with_float32"]
    assert said == f"2 of {lens.n_layers} layers and the head ran again in float32"


# Lost terms ---------------------------------------------------------------------------------------


def without_beta_in_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenNorm, "score", lambda self, g: Scored(self.adjoint(g)))


def without_output_bias_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    on_parts = FrozenAttention.on_parts

    def lose(self: FrozenAttention, parts: Any) -> Any:
        behind = on_parts(self, parts)
        return replace(behind, bias=None)

    monkeypatch.setattr(FrozenAttention, "on_parts", lose)


def without_beta_beside_the_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: FrozenParallelFeedForward, g: Any) -> Scored:
        norm, block = self.chain.steps
        block = block.score(g)
        norm = norm.score(block.arriving)
        return Scored(norm.arriving, block.passed, block.bias_part)

    monkeypatch.setattr(FrozenParallelFeedForward, "score", lose)


def without_up_bias_in_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenFeedForward, "own", property(lambda self: self.neurons.constant))


def without_beta_by_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = Bert.norm
    monkeypatch.setattr(Bert, "norm", lambda self, module: replace(norm(self, module), beta=None))


def maps_of(lens: Any) -> Any:
    return lens.maps(input_ids=IDS)


LOST = [
    (without_beta_in_scores, "gpt2", "CausalLM", explained),
    (without_output_bias_in_parts, "gpt2", "CausalLM", maps_of),
    (without_beta_beside_the_attention, "gpt_neox", "CausalLM", explained),
    (without_up_bias_in_shares, "gpt2", "CausalLM", explained),
    (without_beta_by_the_adapter, "bert", "MaskedLM", maps_of),
]


@in_one_case(("lose", "family", "task", "call"), LOST)
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
        without.setattr(Float32Check, "is_due", lambda *_: False)
        call(lens)  # its own tolerance lets it pass
    for _ in range(2):  # what failed is not taken for done
        with pytest.raises(CompletenessError, match="misses its own modules run in float32"):
            call(lens)
    monkeypatch.undo()
    call(lens)


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
    explained(lens)  # which reads scores, not parts
    assert made[2:] == ["Gemma2DecoderLayer", "Gemma2DecoderLayer", "the end"]
    explained(lens)
    lens.maps(input_ids=[IDS, IDS[:3]])
    assert len(made) == 5
    assert "Float32Check(layer 0 (ig): " in repr(lens.float32_check)


# What cannot be compared --------------------------------------------------------------------------


class OnlyHalf(nn.Module):
    """Stands for a kernel that has no float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            raise RuntimeError("fused_gelu is not implemented for Float")
        return nn.functional.gelu(x)


def test_why_a_layer_was_not_compared_is_said():
    model = headed("bert", "MaskedLM", torch.bfloat16)
    for layer in model.bert.encoder.layer:
        layer.intermediate.intermediate_act_fn = OnlyHalf()
    lens = normlens.load(model, tokenizer=False)
    maps = lens.maps(input_ids=IDS)
    said = maps.provenance["compared_with_float32"]
    assert said == "not compared: layer 0: fused_gelu is not implemented for Float"
    assert said in completeness(maps)
    both = explained(lens).provenance["compared_with_float32"]
    assert both == f"the head ran again in float32; {said}"


def test_no_copy_of_a_large_matrix_is_made(monkeypatch):
    """A vocabulary's matrix is converted piece by piece, for the positions that are asked for."""
    monkeypatch.setattr(comparisons, "PIECE", 1 << 8)
    lens = normlens.load(headed("llama", "CausalLM", torch.bfloat16), tokenizer=False)
    matrix = lens.adapter.whole.lm_head.weight
    assert matrix.numel() > 2 * comparisons.PIECE
    large: list[Any] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = function(*args, **(kwargs or {}))
            wide = isinstance(result, torch.Tensor) and result.dtype == torch.float32
            if wide and matrix.shape[0] in result.shape and matrix.shape[1] in result.shape:
                large.append(function)
            return result

    with Watch():
        explained(lens)
    assert [one.name for one in lens.float32_check.compared.values()] == ["layer 0", "the head"]
    assert not large


def test_vectors_of_texts_are_compared(minilm, monkeypatch):
    lens = normlens.load("minilm", device="cpu", dtype="bfloat16")
    lens.cosine("A small house.", "A tiny home.")
    assert [one.name for one in lens.float32_check.compared.values()] == ["layer 0", "the pooling"]
    lost = normlens.load("minilm", device="cpu", dtype="bfloat16")
    monkeypatch.setattr(FrozenNorm, "affine", lambda self, v: None if v is None else self.linear(v))
    with pytest.raises(CompletenessError, match="misses its own modules run in float32"):
        lost.cosine("A small house.", "A tiny home.")
