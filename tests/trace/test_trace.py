"""One run of an unmodified model, layer by layer."""

from __future__ import annotations

import weakref

import torch
from one_case import in_one_case
from reference import observe, reference, routed_of

from normlens.models import adapt
from normlens.models.tiny import tiny_families, tiny_model
from normlens.trace.run import trace

IDS = [3, 9, 27, 14, 5, 33, 8]


def inputs(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    ids = torch.tensor(rows)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def traced(adapter, layers=None):
    found = []
    count = len(list(adapter.blocks()))
    trace(adapter, inputs([IDS]), range(count) if layers is None else layers, found.append)
    return found


@in_one_case("family", tiny_families())
def test_input_and_weights_of_every_layer(family, tiny):
    adapter = adapt(tiny(family))
    expected = observe(adapter.model, list(adapter.blocks()), IDS)
    found = traced(adapter)
    assert [layer.index for layer in found] == list(range(len(expected.x)))
    for layer, x, alpha in zip(found, expected.x, expected.alpha, strict=True):
        assert torch.equal(layer.x[0], x)
        assert torch.equal(layer.alphas[0][0], alpha)
        assert not layer.x.requires_grad
        assert not layer.alphas[0].requires_grad


@in_one_case("family", tiny_families())
def test_real_vectors_stand_behind_the_right_steps(family, tiny):
    """Each is what parts and bias of its scope add up to, and only few steps have none."""
    for layer in traced(adapt(tiny(family))):
        routed = routed_of(layer.layer)
        expected = reference(layer.layer, layer.x[0], layer.alphas[0][0], routed=routed).parts
        names = layer.layer.scope_of_step
        for step, vector in layer.real.items():
            total = expected[names[step]].total
            size = float(total.abs().max())
            assert torch.allclose(vector[0].double(), total, rtol=0, atol=1e-5 * size), names[step]
        unseen = {names[step] for step in names} - {names[step] for step in layer.real}
        # A parallel block's sum exists nowhere before the residual, nor does OLMo 2's before its
        # feed-forward block as the input of a norm. Granite adds its shared expert in the layer.
        nowhere = {"ATTNRESLNFF-N"} if family == "granitemoeshared" else set()
        assert unseen <= {"ATTNFF-N", "ATTNLNRES-N"} | nowhere
        assert names[max(names)] in {names[step] for step in layer.real}


@in_one_case("family", ["bert", "llama", "albert", "deberta-v2"])
def test_a_layer_is_forgotten_once_it_is_handed_over(family, tiny):
    """No more than one layer's attention weights are ever held."""
    adapter = adapt(tiny(family))
    held: list[weakref.ref] = []

    def consume(layer):
        assert all(reference() is None for reference in held)
        held.append(weakref.ref(layer.alphas[0]))

    trace(adapter, inputs([IDS]), range(len(list(adapter.blocks()))), consume)
    assert len(held) > 1


def compiled(model, place: str):
    """The model with one part, or all of it, compiled; its code has run once already."""
    block = model.layers[0]
    if place == "block":
        model.layers[0] = torch.compile(block, backend="eager")
    elif place == "linear":
        block.mlp.up_proj = torch.compile(block.mlp.up_proj, backend="eager")
    elif place == "norm":
        block.input_layernorm = torch.compile(block.input_layernorm, backend="eager")
    else:
        (block.mlp if place == "in place" else model).compile(backend="eager")
    with torch.no_grad():
        model(**inputs([IDS]))
    return model


@in_one_case("place", ["block", "linear", "norm", "in place", "whole in place"])
def test_compiled_modules_run_as_they_were_written(place):
    """Compiled code may pass by the hooks that read it."""
    expected = traced(adapt(tiny_model("llama")))
    found = traced(adapt(compiled(tiny_model("llama"), place)))
    assert len(found) == len(expected) == 2
    for layer, other in zip(found, expected, strict=True):
        assert torch.equal(layer.x, other.x)
        assert torch.equal(layer.alphas[0], other.alphas[0])
        assert layer.real.keys() == other.real.keys()
        assert all(torch.equal(layer.real[step], other.real[step]) for step in layer.real)
        assert len(layer.rows) == len(other.rows) == 5
