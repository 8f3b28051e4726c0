"""Some rows of a linear module's input and output."""

from __future__ import annotations

import torch
from torch import nn

from normlens.models import adapt
from normlens.models.tiny import tiny_model
from normlens.trace.run import ROWS, SOME_ROWS, Recorder, trace


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
