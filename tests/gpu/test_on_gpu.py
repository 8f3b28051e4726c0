"""The fused kernel on a GPU against float64: every family, odd sizes, ragged batches."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from fused_examples import (
    LAYERS,
    TOLERANCE,
    entry_error,
    force_method,
    force_storing,
    on,
)
from one_case import in_one_case
from reference import references

import normlens
from normlens.gpu import stage
from normlens.models.tiny import tiny_families, tiny_model

pytestmark = pytest.mark.gpu

IDS = [3, 9, 27, 14, 5, 33, 8]
BATCH = [IDS, [40, 41, 3], [7, 12, 60, 22, 51]]
every_precision = in_one_case("precision", TOLERANCE)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What a kernel does not write is NaN."""
    empty = torch.empty

    def full_of_nan(*args, **kwargs):
        made = empty(*args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(stage.torch, "empty", full_of_nan)


def exactly(given):
    """A problem's own results in float64."""
    layer = given.layer.to(torch.float64)
    return replace(given, layer=layer, x=given.x.double(), alpha=given.alpha.double()).solve()


@every_precision
@in_one_case("family", tiny_families())
def test_every_family_gives_the_reference(family, precision):
    model = tiny_model(family)
    expected = references(copy.deepcopy(model).double(), IDS)
    lens = normlens.load(model, device="cuda")
    maps = lens.maps(input_ids=IDS, precision=precision)
    for position, layer in enumerate(expected):
        for scope in maps.scopes:
            found = torch.from_numpy(np.array(maps[scope][position]))
            # float32 itself leaves some 1e-5 in the entries of models with large activations
            error = entry_error(found, layer.maps[scope])
            assert error <= TOLERANCE[precision], f"layer {position}, {scope}: {error:.1e}"


@every_precision
@in_one_case("family", ["bert", "gpt2", "llama", "gemma2"])
def test_ragged_batches_give_the_reference(family, precision):
    model = tiny_model(family)
    lens = normlens.load(copy.deepcopy(model), device="cuda")
    model = model.double()
    for maps, ids in zip(lens.maps(input_ids=BATCH, precision=precision), BATCH, strict=True):
        for position, layer in enumerate(references(model, ids)):
            for scope in maps.scopes:
                found = torch.from_numpy(np.array(maps[scope][position]))
                assert entry_error(found, layer.maps[scope]) <= TOLERANCE[precision], scope


@every_precision
@in_one_case("name", LAYERS)
@in_one_case(
    "sizes",
    [
        {"n": 1, "d": 12, "m": 20, "heads": 4},
        {"n": 19, "d": 21, "m": 37, "heads": 3},
        {"n": 130, "d": 40, "m": 72, "heads": 4},
        {"n": 70, "d": 264, "m": 130, "heads": 12, "scale": 0.1},
        {"n": 33, "d": 340, "m": 200, "heads": 68, "scale": 0.1},
    ],
    ids=lambda sizes: f"n{sizes['n']}-d{sizes['d']}",
)
@in_one_case("stored", [False, True], ids=["anew", "stored"])
def test_odd_sizes(stored, sizes, name, precision, problem, monkeypatch):
    force_storing(stored, monkeypatch)
    settings = {**LAYERS[name], **sizes}
    settings.pop("groups", None)
    given = on(problem(batch=2, dtype=torch.float32, seed=sizes["n"], **settings), "cuda")
    found, expected = given.solve(precision=precision), exactly(given)
    assert found.precision == precision
    for scope, norms in expected.norms.items():
        error = entry_error(found.norms[scope], norms)
        assert error <= TOLERANCE[precision], f"{scope}: {error:.1e}"


@every_precision
@in_one_case("name", ["relu", "gelu", "gated"])
def test_ways_agree_at_full_size(name, precision, problem, monkeypatch):
    """Where every stage of every pipeline is in use, which tiny sizes leave out."""
    settings = LAYERS["gated"] if name == "gated" else {"order": "post", "activation": name}
    sizes = {"n": 300, "d": 768, "m": 3072, "heads": 12, "scale": 0.03, "groups": None}
    given = on(problem(dtype=torch.float32, **{**settings, **sizes}), "cuda")
    expected = exactly(given)
    for method in ("in one kernel", "by pair", "matrices"):
        force_method(method, monkeypatch)
        for scope, norms in given.solve(precision=precision).norms.items():
            error = entry_error(norms, expected.norms[scope])
            assert error <= TOLERANCE[precision], f"{method}, {scope}: {error:.1e}"


def test_correlations_are_those_of_the_maps():
    from normlens.corpus.measures.rows import correlate

    for family in ("bert", "gpt2"):
        lens = normlens.load(tiny_model(family), device="cuda")
        encoded = lens.encode(input_ids=BATCH)
        for maps in lens.analyse(encoded, correlations=True):
            expected = correlate(maps)
            assert maps.correlations.scopes == expected.scopes
            np.testing.assert_allclose(maps.correlations.rho, expected.rho, atol=1e-12)
        only = lens.analyse(encoded, correlations=True, arrays=False)[0]
        assert not only.arrays
        assert only.correlations is not None


def test_edited_weights_are_noticed():
    """Operands are kept from text to text; `.data` leaves no sign that they have grown old."""
    model = tiny_model("bert")
    lens = normlens.load(model, device="cuda")
    lens.maps(input_ids=IDS)
    block = next(iter(lens.adapter.blocks()))
    block.output.dense.weight.data *= 1.3
    fresh = normlens.load(copy.deepcopy(model), device="cuda").maps(input_ids=IDS)
    found = lens.maps(input_ids=IDS)
    for scope in fresh.scopes:
        np.testing.assert_allclose(found[scope], fresh[scope], rtol=1e-3)
