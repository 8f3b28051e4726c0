"""GlobEnc, ALTI, value zeroing and rollouts of scopes against slow references in float64."""

from __future__ import annotations

import numpy as np
from heads import tried_families
from one_case import in_one_case
from reference import largest_error, references
from rollout_examples import (
    IDS,
    POST_LN,
    VALUES,
    alti_map,
    globenc_map,
    slow_rollout,
    value_zeroing_maps,
)

import normlens
from normlens.explain.rollouts import alti, globenc, rollout_of_scope, value_zeroing
from normlens.layers import Norm
from normlens.models import adapt

EVERY_SCOPE = ["bert", "gpt2", "gptj", "llama", "gemma2", "olmo2", "modernbert"]


def lens_and_ids(model):
    lens = normlens.load(model)
    return lens, lens.encode(input_ids=IDS)


@in_one_case("family", POST_LN)
def test_globenc(family, tiny):
    model = tiny(family)
    lens, encoded = lens_and_ids(model)
    (maps,) = globenc(lens, encoded)
    adapter = adapt(model)
    norms = [
        [step for step in adapter.layer(block).steps if isinstance(step, Norm)][-1]
        for block in adapter.blocks()
    ]
    single = [
        globenc_map(layer, norm.gamma.detach().double(), norm.eps)
        for layer, norm in zip(references(model, IDS), norms, strict=True)
    ]
    expected = slow_rollout(np.stack(single), residual=0.0, normalise=False)
    assert largest_error(maps["LN2"], expected) <= 1e-6  # σ of the model's own float32 sums
    assert maps.provenance["rollout"] == {"method": "globenc", "residual": 0.0, "normalise": False}
    assert maps.completeness <= 1e-6


@in_one_case("family", tried_families())
def test_alti_of_the_whole_layer(family, tiny):
    model = tiny(family)
    lens, encoded = lens_and_ids(model)
    (maps,) = alti(lens, encoded)
    scope = lens.scopes[-1]
    single = np.stack([alti_map(layer, scope) for layer in references(model, IDS)])
    assert largest_error(maps[scope], slow_rollout(single, 0.0, True)) <= 1e-9
    if single.any(-1).all():
        np.testing.assert_allclose(maps[scope].sum(-1), 1)


@in_one_case("family", EVERY_SCOPE)
def test_alti_behind_every_component(family, tiny):
    """The attention block of its authors among them."""
    model = tiny(family)
    lens, encoded = lens_and_ids(model)
    expected = references(model, IDS)
    for scope in [scope for scope in lens.scopes if scope.endswith("-N")]:
        (maps,) = alti(lens, encoded, scope=scope)
        single = np.stack([alti_map(layer, scope) for layer in expected])
        assert largest_error(maps[scope], slow_rollout(single, 0.0, True)) <= 1e-9, scope


@in_one_case("family", VALUES)
def test_value_zeroing(family, tiny):
    model = tiny(family)
    lens, encoded = lens_and_ids(model)
    (maps,) = value_zeroing(lens, encoded)
    single = value_zeroing_maps(model, IDS)
    expected = slow_rollout(single, residual=0.0, normalise=True)
    assert largest_error(maps[lens.scopes[-1]], expected) <= 1e-6
    np.testing.assert_allclose(maps[lens.scopes[-1]].sum(-1), 1)


@in_one_case("family", EVERY_SCOPE)
def test_rollout_of_every_scope(family, tiny):
    model = tiny(family)
    lens, encoded = lens_and_ids(model)
    expected = references(model, IDS)
    for scope in lens.scopes:
        (maps,) = rollout_of_scope(lens, encoded, scope=scope)
        single = np.stack([layer.maps[scope].numpy() for layer in expected])
        residual = 0.0 if "RES" in scope else 0.5
        rolled = slow_rollout(single, residual, normalise=scope.endswith("-N"))
        assert largest_error(maps[scope], rolled) <= 1e-9, scope
        np.testing.assert_allclose(maps[scope].sum(-1), 1, rtol=1e-6)
