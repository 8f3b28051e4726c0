"""Products of weights that are kept from text to text: never a number of theirs, only time."""

from __future__ import annotations

import copy

import pytest
import torch
from reference import largest_error, reference

import normlens
from normlens.decomposition import decompose_layer
from normlens.decomposition.projections import ProjectionCache
from normlens.models.tiny import tiny_model

IDS = list(range(3, 40))
FAMILIES = pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "albert"])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("n", [2, 40])
def test_kept_or_formed_anew_or_not_at_all(gated, n, problem):
    """Whichever order the first two products are taken in, the maps are the reference's."""
    given = problem("post", n=n, d=16, heads=2, gated=gated)
    expected = reference(given.layer, given.x[0], given.alpha[0])
    roomy = ProjectionCache(1 << 30)
    for cache in (None, ProjectionCache(0), roomy, roomy, roomy):
        remembered = None if cache is None else cache.of(0, "version")
        found = decompose_layer(
            given.layer, given.x, given.alpha, [n], given.layer.scopes, remembered=remembered
        )
        for scope, norms in found.norms.items():
            assert largest_error(norms[0], expected.maps[scope]) < 1e-9, scope
    assert (roomy.size > 0) == (n == 40)


def basis_and_weights(heads: int = 2, d_head: int = 4, d: int = 32, m: int = 10):
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(heads, d_head, d, generator=generator)
    return basis, (torch.randn(d, m, generator=generator),)


def test_products_are_each_heads_path_to_each_neuron():
    basis, weights = basis_and_weights()
    (found,) = ProjectionCache().of(0, None).get(basis, weights, 1000)
    torch.testing.assert_close(found, torch.einsum("hed,dm->hem", basis, weights[0]))


def test_they_are_formed_once_enough_tokens_have_come():
    basis, weights = basis_and_weights()
    remembered = ProjectionCache(1 << 20).of(0, None)
    assert remembered.get(basis, weights, 3) is None
    assert remembered.get(basis, weights, 1) is None
    formed = remembered.get(basis, weights, 2)
    assert formed is not None
    assert remembered.get(basis, weights, 1) is formed


def test_without_room_only_a_long_text_pays():
    basis, weights = basis_and_weights()
    cache = ProjectionCache(1)
    remembered = cache.of(0, None)
    for _ in range(5):
        assert remembered.get(basis, weights, 3) is None
    assert remembered.get(basis, weights, 1000) is not None
    assert remembered.kept is None
    assert cache.size == 0


def test_the_limit_is_for_all_layers_together():
    basis, weights = basis_and_weights()
    one = 2 * 4 * 10 * 4  # heads · d_head · m · bytes
    cache = ProjectionCache(int(2.5 * one))
    for layer in range(4):
        cache.of(layer, None).get(basis, weights, 1000)
    assert cache.size == 2 * one


def test_other_weights_are_not_taken_for_the_old_ones():
    basis, weights = basis_and_weights()
    cache = ProjectionCache(1 << 20)
    first = cache.of(0, "old").get(basis, weights, 1000)
    assert cache.of(0, "old").kept is first
    assert cache.of(0, "new").kept is None


def test_clear():
    basis, weights = basis_and_weights()
    cache = ProjectionCache(1 << 20)
    cache.of(0, None).get(basis, weights, 1000)
    cache.clear()
    assert cache.size == 0


# Through the lens ---------------------------------------------------------------------------------


def assert_fresh(lens: normlens.Lens, model: torch.nn.Module) -> None:
    """`lens` gives what a lens that has seen nothing before gives for the model as it is now."""
    expected = normlens.load(copy.deepcopy(model)).maps(input_ids=IDS)
    found = lens.maps(input_ids=IDS)
    for scope in expected.scopes:
        assert largest_error(found[scope], expected[scope]) < 1e-5, scope


def feed_forward_weights(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    words = ("intermediate.dense.weight", "mlp.c_fc.weight", "mlp.up_proj.weight", "ffn.weight")
    found = [p for name, p in model.named_parameters() if name.endswith(words)]
    assert found
    return found


@FAMILIES
def test_texts_in_a_row_do_not_change_each_other(family):
    lens = normlens.load(tiny_model(family))
    texts = [IDS[:3], IDS, IDS[5:9], IDS[:3]]
    for ids in texts:
        expected = normlens.load(tiny_model(family)).maps(input_ids=ids)
        found = lens.maps(input_ids=ids)
        for scope in expected.scopes:
            assert largest_error(found[scope], expected[scope]) < 1e-6, scope


@FAMILIES
def test_weights_changed_in_place(family):
    model = tiny_model(family)
    lens = normlens.load(model)
    lens.maps(input_ids=IDS)
    with torch.no_grad():
        for weight in feed_forward_weights(model):
            weight.mul_(-1.5)
    assert_fresh(lens, model)


@FAMILIES
def test_weights_changed_behind_torchs_back(family):
    model = tiny_model(family)
    lens = normlens.load(model)
    lens.maps(input_ids=IDS)
    for weight in feed_forward_weights(model):
        weight.data.mul_(-1.5)
    assert_fresh(lens, model)


@FAMILIES
def test_weights_loaded_into_the_model(family):
    model = tiny_model(family)
    lens = normlens.load(model)
    lens.maps(input_ids=IDS)
    model.load_state_dict(tiny_model(family, seed=1).state_dict())
    assert_fresh(lens, model)


@FAMILIES
def test_weights_replaced(family):
    model = tiny_model(family)
    lens = normlens.load(model)
    lens.maps(input_ids=IDS)
    for weight in feed_forward_weights(model):
        weight.data = torch.flip(weight.data, [0])
    assert_fresh(lens, model)


@FAMILIES
def test_a_model_converted_between_texts(family):
    model = tiny_model(family)
    lens = normlens.load(model)
    lens.maps(input_ids=IDS)
    for dtype in (torch.float64, torch.float32):
        model.to(dtype)
        assert_fresh(lens, model)


def test_a_smaller_limit_holds_for_what_was_kept_before():
    lens = normlens.load(tiny_model("bert"))
    lens.maps(input_ids=IDS, memory_limit="1GB")
    assert lens._projections.size > 1000
    lens.maps(input_ids=IDS, memory_limit=1000, scopes="ATTN")
    assert lens._projections.size <= 1000
