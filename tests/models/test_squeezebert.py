"""SqueezeBERT: the stand-ins of its methods change what hooks see, and no number."""

from __future__ import annotations

import pytest
import torch
from one_case import in_one_case

import normlens
from normlens.errors import UnsupportedModelError
from normlens.models import adapt
from normlens.models.tiny import tiny_model
from normlens.trace.run import reading

IDS = [3, 9, 27, 14, 5, 33, 8]
PADDED = {
    "input_ids": torch.tensor([IDS, [40, 41, 3, 1, 1, 1, 1]]),
    "attention_mask": torch.tensor([[1] * 7, [1, 1, 1, 0, 0, 0, 0]]),
}


def run(model):
    with torch.no_grad():
        return model(**PADDED, output_attentions=True, output_hidden_states=True)


def test_a_read_model_computes_the_same_bits(tiny):
    model = tiny("squeezebert")
    expected = run(model)
    with reading(model, adapt(model)):
        given = run(model)
    assert len(expected.hidden_states) == len(expected.attentions) + 1 == 3
    for name in ("hidden_states", "attentions"):
        for one, other in zip(given[name], expected[name], strict=True):
            assert torch.equal(one, other), name
    assert torch.equal(given.pooler_output, expected.pooler_output)


def test_nothing_stays_behind():
    model = tiny_model("squeezebert")
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    with pytest.raises(ZeroDivisionError), reading(model, adapt(model)):
        raise ZeroDivisionError
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


@in_one_case("part", ["query", "key"])
def test_hooks_that_could_change_the_weights_are_refused(part):
    model = tiny_model("squeezebert")
    lens = normlens.load(model)
    handle = getattr(model.encoder.layers[1].attention, part).register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedModelError, match=rf"layers\.1\.attention\.{part} has a hook"):
        lens.maps(input_ids=IDS)
    handle.remove()
    assert lens.maps(input_ids=IDS).completeness < 1e-4
