"""What a trace shows of a layer, against what its adapter says of it."""

from __future__ import annotations

import pytest
import torch
from one_case import in_one_case
from torch import nn

import normlens
from normlens.errors import UnsupportedModelError
from normlens.layers import Linear, Reach
from normlens.models import adapt
from normlens.models.tiny import tiny_model
from normlens.trace.checks import (
    LINEAR_TOLERANCE,
    attention_support,
    linear_errors,
    linear_sizes,
    masked_beyond,
)
from normlens.trace.run import ROWS, SOME_ROWS, Recorder, Rows, trace

IDS = [3, 9, 27, 14, 5, 33, 8]


def softmax_weights(mask: torch.Tensor, heads: int = 3) -> torch.Tensor:
    """Random attention weights (1, h, i, j) with a mask (i, j)."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, heads, *mask.shape, generator=generator)
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


def sides(alpha: torch.Tensor, lengths: list[int], reach: Reach = Reach()) -> list[int | None]:
    """Where a mask ends, ahead and back, as `masked_beyond` sees it."""
    offsets = attention_support(alpha, reach, lengths)[1]
    n, heads = alpha.shape[-1], alpha.shape[1]
    return [
        masked_beyond(counts.numpy(), limit, heads)
        for counts, limit in (
            (offsets[n - 1 :], reach.ahead),
            (offsets[:n].flip(0), reach.back),
        )
    ]


@in_one_case("reach", [Reach(), Reach(None, 0), Reach(2, 0), Reach(1, 3)])
def test_weights_are_counted_by_distance(reach):
    n = 7
    outside, offsets = attention_support(softmax_weights(reach.mask(n)), reach, [n])
    expected = [int(reach.mask(n).diagonal(k).sum()) for k in range(1 - n, n)]
    assert offsets.tolist() == expected
    assert float(outside) == 0


def test_the_largest_weight_outside_the_reach():
    alpha = softmax_weights(Reach().mask(6))
    outside, _ = attention_support(alpha, Reach(None, 0), [6])
    assert float(outside) == float(alpha.triu(1).max())


def test_padding_counts_for_nothing():
    """Rows and columns beyond a sequence's length hold anything."""
    alpha = softmax_weights(Reach(None, 0).mask(8)).repeat(2, 1, 1, 1)
    alpha[1, :, 3:], alpha[1, :, :, 3:] = 0.5, 0.5
    outside, offsets = attention_support(alpha, Reach(None, 0), [8, 3])
    assert float(outside) == 0
    assert not offsets[8:].any()


@in_one_case("n", [3, 4, 12])
def test_a_mask_that_nobody_mentioned(n):
    assert sides(softmax_weights(Reach(None, 0).mask(n)), [n]) == [0, None]


def test_a_window_that_nobody_mentioned():
    assert sides(softmax_weights(Reach(4, 0).mask(20)), [20], Reach(None, 0)) == [None, 4]
    assert sides(softmax_weights(Reach(4, 2).mask(20)), [20]) == [2, 4]


@in_one_case("reach", [Reach(), Reach(None, 0), Reach(3, 0), Reach(3, 3), Reach(40, 0)])
@in_one_case("n", [1, 2, 3, 20])
def test_a_reach_that_is_right_is_no_news(reach, n):
    assert sides(softmax_weights(reach.mask(n)), [n], reach) == [None, None]


def test_small_weights_that_vanish_in_half_precision_are_no_mask():
    """Weights that decay with the distance underflow far away, but they fade out."""
    n, heads = 200, 4
    generator = torch.Generator().manual_seed(0)
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    scores = 3 * torch.randn(1, heads, n, n, generator=generator) - 0.25 * distance
    alpha = scores.softmax(-1).half()
    counts = attention_support(alpha, Reach(), [n])[1]
    assert (counts == 0).sum() > 20  # whole diagonals are zero
    assert sides(alpha, [n]) == [None, None]


@in_one_case("dtype", LINEAR_TOLERANCE, ids=str)
@in_one_case("scale", [1e-3, 1.0, 1e3])
def test_rounding_is_within_the_tolerance(dtype, scale):
    torch.manual_seed(0)
    module = nn.Linear(300, 200).to(dtype)
    x = (scale * torch.randn(8, 300)).to(dtype)
    rows = Rows(x, module(x).detach())
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    linear = Linear(module.weight.detach().T.to(precise), module.bias.detach().to(precise))
    assert linear_errors(linear_sizes(linear, rows, 8)[None])[0] < LINEAR_TOLERANCE[dtype] / 4


def test_one_wrong_row_among_larger_ones_is_seen():
    """A token with huge values must not hide what the module does to the others."""
    torch.manual_seed(0)
    weight = torch.randn(30, 20)
    x = torch.randn(8, 30)
    x[0] *= 1e4
    y = x @ weight
    y[5] *= 1.01
    assert linear_errors(linear_sizes(Linear(weight), Rows(x, y), 8)[None])[0] > 5e-3


class Louder(nn.Linear):
    """Something acts inside a module that looks like any other."""

    def forward(self, x):
        return 1.05 * super().forward(x)


def louder(model: nn.Module, *names: str) -> nn.Module:
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in names:
            module.__class__ = Louder
    return model


@in_one_case("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@in_one_case(
    ("family", "name", "place"),
    [
        ("llama", "v_proj", "layers.0.self_attn.v_proj"),
        ("llama", "down_proj", "layers.0.mlp.down_proj"),
        ("phi3", "qkv_proj", "layers.0.self_attn.qkv_proj"),
        ("bloom", "query_key_value", "h.0.self_attention.query_key_value"),
    ],
)
def test_a_module_that_does_more_than_its_weight_says_is_named(family, name, place, dtype):
    lens = normlens.load(louder(tiny_model(family), name).to(dtype))
    with pytest.raises(UnsupportedModelError) as raised:
        lens.maps(input_ids=IDS)
    message = str(raised.value)
    assert message.startswith(place)
    assert "Louder) of layer 0 does not compute x W + b" in message
    assert "merge_and_unload" in message
    assert "\n" not in message


def recording() -> Recorder:
    return Recorder(adapt(tiny_model("bert")), {0}, lambda traced: None)


def test_rows_are_few_and_spread_over_the_tokens():
    recorder, module = recording(), nn.Linear(4, 3)
    x = torch.arange(200.0).reshape(2, 25, 4)
    recorder._keep([SOME_ROWS], module, (x,), {}, x[..., :3])
    rows = recorder.rows[module]
    assert rows.input.shape == (ROWS, 4)
    assert rows.output.shape == (ROWS, 3)
    assert torch.equal(rows.output, rows.input[:, :3])
    assert rows.input[-1, 0] > 150
    assert rows.input.untyped_storage().nbytes() == ROWS * 4 * 4  # not a view of all tokens


def test_a_module_that_is_called_token_by_token():
    recorder, module = recording(), nn.Linear(4, 4)
    for token in torch.randn(20, 1, 4):
        recorder._keep([SOME_ROWS], module, (), {"input": token}, token)
    rows = recorder.rows[module]
    assert rows.input.shape == (ROWS, 4)


def test_a_trace_holds_rows_of_every_linear_module():
    found = []
    ids = torch.tensor([[3, 9, 27]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    trace(adapt(tiny_model("phi3")), inputs, [1], found.append)
    block = found[0].block
    attention, mlp = block.self_attn, block.mlp
    expected = {attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj}
    assert set(found[0].rows) == expected
    for module, rows in found[0].rows.items():
        assert torch.equal(module(rows.input), rows.output)
