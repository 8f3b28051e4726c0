"""SqueezeBERT: the stand-ins of its methods change what hooks see, and no number."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import transformers
from one_case import in_one_case
from reference import assert_maps_match, references

import normlens
from normlens.errors import CompletenessError, UnsupportedModelError
from normlens.explain.rollouts import value_zeroing
from normlens.models import adapt
from normlens.models.tiny import scramble, tiny_config, tiny_model
from normlens.studies.faithfulness.methods import method
from normlens.studies.faithfulness.questions import Question
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


def test_hooks_see_every_vector_as_in_other_families(tiny):
    model = tiny("squeezebert")
    block = model.encoder.layers[0]
    width = {
        block: 16,
        block.attention.value: 16,
        block.post_attention.conv1d: 16,
        block.post_attention.layernorm: 16,
        block.intermediate.conv1d: 16,
        block.output.conv1d: 24,
        block.output.layernorm: 16,
    }
    seen = {}

    def note(module, args, _):
        seen[module] = tuple(args[0].shape)

    handles = [module.register_forward_hook(note) for module in width]
    try:
        with reading(model, adapt(model)):
            run(model)
    finally:
        for handle in handles:
            handle.remove()
    assert seen == {module: (2, 7, d) for module, d in width.items()}


def test_another_thread_runs_the_model_as_it_is(tiny):
    model = tiny("squeezebert")
    convolution = model.encoder.layers[0].post_attention.conv1d
    vectors = torch.randn(2, 16, 7, dtype=model.dtype)
    expected, given = run(model).last_hidden_state, []

    def work():
        given.extend([run(model).last_hidden_state, convolution(vectors)])

    with reading(model, adapt(model)):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert torch.equal(given[0], expected)
    assert torch.equal(given[1], convolution(vectors))


def test_nothing_stays_behind():
    model = tiny_model("squeezebert")
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    with pytest.raises(ZeroDivisionError), reading(model, adapt(model)):
        raise ZeroDivisionError
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


@in_one_case("groups", [1, 2])
def test_other_numbers_of_groups_equal_the_reference(groups, tiny):
    names = ("q", "k", "v", "post_attention", "intermediate", "output")
    settings = {f"{name}_groups": groups for name in names}
    model = tiny("squeezebert", torch.float64, **settings)
    maps = normlens.load(model).maps(input_ids=IDS)
    assert_maps_match(maps, references(model, IDS), 1e-9)


def test_gradients_pass_the_stand_ins():
    config = tiny_config("squeezebert", num_labels=3)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval().double()
    scramble(model)
    lens = normlens.load(model)
    (encoded,) = lens.encode(input_ids=IDS)
    (scores,) = method("gradient-x-input")(lens, [Question(encoded, 2, 1)])
    entered = []

    def note(_, __, vectors):
        vectors.retain_grad()
        entered.append(vectors)

    with model.transformer.embeddings.register_forward_hook(note):
        logits = model(input_ids=torch.tensor([IDS])).logits[0]
    (logits[2] - logits[1]).backward()
    (vectors,) = entered
    expected = (vectors.grad * vectors).sum(-1)[0].detach()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)


def test_value_zeroing_is_that_of_the_plain_model(tiny):
    model = tiny("squeezebert", torch.float64)
    lens = normlens.load(model)
    (maps,) = value_zeroing(lens, lens.encode(input_ids=IDS))

    def behind_the_first_layer(zeroed=None):
        def zero(_, __, values):  # (b, d, i)
            return values if zeroed is None else values.index_fill(2, torch.tensor(zeroed), 0)

        with model.encoder.layers[0].attention.value.register_forward_hook(zero), torch.no_grad():
            given = model(input_ids=torch.tensor([IDS]), output_hidden_states=True)
        return given.hidden_states[1][0]

    y = behind_the_first_layer()
    columns = [1 - torch.cosine_similarity(y, behind_the_first_layer(j)) for j in range(len(IDS))]
    expected = torch.stack(columns, dim=1)
    expected /= expected.sum(1, keepdim=True)
    np.testing.assert_allclose(maps[lens.scopes[-1]][0], expected, rtol=1e-6)


@in_one_case("part", ["query", "key"])
def test_hooks_that_could_change_the_weights_are_refused(part):
    model = tiny_model("squeezebert")
    lens = normlens.load(model)
    handle = getattr(model.encoder.layers[1].attention, part).register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedModelError, match=rf"layers\.1\.attention\.{part} has a hook"):
        lens.maps(input_ids=IDS)
    handle.remove()
    assert lens.maps(input_ids=IDS).completeness < 1e-4


def test_a_hook_elsewhere_in_a_layer_is_noticed():
    model = tiny_model("squeezebert")
    lens = normlens.load(model)
    model.encoder.layers[1].output.layernorm.register_forward_hook(lambda _, __, y: 2 * y)
    with pytest.raises(CompletenessError):
        lens.maps(input_ids=IDS)
