"""Products of weights: which are formed, which are kept, and that no number depends on the past."""

from __future__ import annotations

import copy
import random

import torch
from layer_problems import decompose_layer
from one_case import in_one_case
from reference import largest_error, reference

import normlens
from normlens.frozen import head_products
from normlens.frozen.feedforward import SampledFeedForward
from normlens.frozen.head_products import ProductStore
from normlens.frozen.parts import Factors
from normlens.frozen.tiles import Job
from normlens.layers import FeedForward, Linear, Reach
from normlens.models.tiny import tiny_model

IDS = list(range(3, 40))
FAMILIES = in_one_case("family", ["bert", "gpt2", "llama", "albert", "gemma2"])


def prepared(layer, limit: int = 1 << 30) -> ProductStore:
    store = ProductStore(limit)
    store.refresh({0: layer}, {0}, torch.float64)
    return store


@in_one_case("order", ["post", "pre", "both", "bare"])
@in_one_case("gated", [False, True])
@in_one_case("n", [2, 40])
def test_kept_or_formed_or_not_at_all(order, gated, n, problem):
    """Whichever order the first two products are taken in, the maps are the reference's."""
    given = problem(order, n=n, d=16, heads=2, gated=gated)
    expected = reference(given.layer, given.x[0], given.alpha[0])
    kept = prepared(given.layer).of(0)
    assert kept is not None
    for products in (None, kept):
        found = decompose_layer(
            given.layer, given.x, given.alpha, [n], given.layer.scopes, kept=products
        )
        for scope, norms in found.norms.items():
            assert largest_error(norms[0], expected.maps[scope]) < 1e-9, scope


def job_of(kept=None, heads: int = 2, d_head: int = 4, d: int = 32, m: int = 10) -> Job:
    draw = torch.Generator().manual_seed(0)
    basis = torch.randn(heads, d_head, d, generator=draw)
    up, down = (torch.randn(*shape, generator=draw) for shape in ((d, m), (m, d)))
    block = SampledFeedForward(FeedForward(Linear(up), Linear(down), "gelu"), torch.zeros(1, 3, d))
    empty = torch.zeros(1, 3, 3, heads), torch.ones(1, 3), torch.zeros(1, 3, heads, d_head)
    return Job(block, Factors(*empty, basis, Reach()), "FF-N", {}, kept=kept)


def test_only_a_text_that_repays_them_has_them_formed():
    """Whatever came before it: forming costs as much as 4 · 32 / (32 − 4) tokens save."""
    job = job_of()
    for n, formed in [(3, False), (4, False), (5, True), (1000, True), (4, False), (3, False)]:
        assert job.uses_head_products(n) == formed, n


def test_the_limit_is_for_all_layers_together(problem):
    layers = {key: problem("post", n=4, d=16, m=10, seed=key).layer for key in range(4)}
    one = 16 * 10 * 8  # heads · d_head · m · bytes
    store = ProductStore(int(2.5 * one))
    store.refresh(layers, set(layers), torch.float64)
    assert store.size == 2 * one
    assert [key for key in layers if store.of(key) is not None] == [0, 1]
    # The same ones have room when only others are asked for.
    store.refresh(layers, {3}, torch.float64)
    assert [key for key in layers if store.of(key) is not None] == [0, 1]


# Through the lens ---------------------------------------------------------------------------------


def calls(seed: int, count: int) -> list[dict]:
    """Calls of many kinds: short and long texts, some layers, batches, limits, rules."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        texts = [
            draw.choices(range(3, 60), k=draw.choice([1, 2, 3, 5, 8, 20, 40]))
            for _ in range(draw.choice([1, 1, 3]))
        ]
        made.append(
            {
                "input_ids": texts,
                "batch_size": draw.choice([1, 2, "auto"]),
                "layers": draw.choice([None, 0, -1]),
                "memory_limit": draw.choice([None, None, "30KB", "1GB"]),
                "nonlinearity": draw.choice(["ig", "ig", "gradient"]),
            }
        )
    return made


@FAMILIES
@in_one_case("prepare", [False, True])
def test_the_same_call_gives_the_same_bits_whatever_came_before(family, prepare):
    def fresh() -> normlens.Lens:
        lens = normlens.load(model)
        return lens.prepare() if prepare else lens

    model = tiny_model(family)
    lens = fresh()
    asked = calls(seed=0, count=8)
    for options in asked + random.Random(1).sample(asked, len(asked)):
        for found, expected in zip(lens.maps(**options), fresh().maps(**options), strict=True):
            assert found == expected


# Weights that change ------------------------------------------------------------------------------


def feed_forward_weights(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    words = ("intermediate.dense.weight", "mlp.c_fc.weight", "mlp.up_proj.weight", "ffn.weight")
    found = [p for name, p in model.named_parameters() if name.endswith(words)]
    assert found
    return found


def in_place(model):
    with torch.no_grad():
        for weight in feed_forward_weights(model):
            weight.mul_(-1.5)


def through_data(model):
    """As merging an adapter does: neither address nor version of the weight changes."""
    for weight in feed_forward_weights(model):
        weight.data.add_(0.015 * weight.data.flip(0))


def loaded(model):
    model.load_state_dict(tiny_model(model.config.model_type, seed=1).state_dict())


def to_double(model):
    model.double()


CHANGES = [
    in_place,
    through_data,
    loaded,
    to_double,
]


@in_one_case("family", ["bert", "llama"])
@in_one_case("prepare", [False, True])
@in_one_case("dtype", [torch.float32, torch.bfloat16])
@in_one_case("change", CHANGES)
def test_weights_that_change_are_noticed(family, prepare, dtype, change):
    """Bit for bit what a lens gives that has never seen the old weights."""
    model = tiny_model(family).to(dtype)
    lens = normlens.load(model)
    if prepare:
        lens.prepare()
    lens.maps(input_ids=IDS)
    change(model)
    expected = normlens.load(copy.deepcopy(model))
    if prepare:
        expected.prepare()
    assert lens.maps(input_ids=IDS) == expected.maps(input_ids=IDS)


@in_one_case("steady", [False, True])
def test_steady_weights_are_compared_by_their_places(steady, problem, monkeypatch):
    """An edit through torch is noticed either way, one behind its back by content alone."""
    layer = problem("post", d=16, heads=2).layer
    store = prepared(layer)
    compared = []
    content = head_products.fingerprints
    monkeypatch.setattr(
        head_products, "fingerprints", lambda weights: compared.append(weights) or content(weights)
    )

    def refreshed():
        before = store.of(0)
        store.refresh({0: layer}, {0}, torch.float64, steady=steady)
        return store.of(0) is not before

    assert not refreshed()
    assert len(compared) == (0 if steady else 1)
    layer.feed_forward.down.weight.data.mul_(2)
    assert refreshed() == (not steady)
    layer.feed_forward.down.weight.mul_(2)
    assert refreshed()
    assert not refreshed()
