"""The frozen layer: its faces agree with each other, with autograd, and with the real layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from one_case import in_one_case
from reference import largest_error, reference

from normlens.errors import InputError
from normlens.frozen.layer import freeze
from normlens.frozen.norm_maps import layer_maps
from normlens.frozen.scores import layer_scores
from normlens.layers import Branch, Layer, Residual

ORDERS = ["post", "pre", "parallel", "both", "bare", "branch-normed"]
every_order = in_one_case("order", ORDERS)
every_rule = in_one_case("rule", ["ig", "ig-bias", "gradient"])


def frozen(given, rule: str = "ig"):
    return freeze(given.layer, given.x, given.alpha, [given.x.shape[1]] * len(given.x), rule)


def output_of(given) -> torch.Tensor:
    """The layer's real output, by the reference."""
    last = max(given.layer.scope_of_step)
    scope = given.layer.scope_of_step[last]
    totals = [
        reference(given.layer, x, alpha).parts[scope].total
        for x, alpha in zip(given.x, given.alpha, strict=True)
    ]
    return torch.stack(totals)


@every_order
@every_rule
@in_one_case("gated", [False, True])
def test_the_linear_face_of_the_input_and_what_no_token_owns_are_the_output(
    order, rule, gated, problem
):
    given = problem(order, gated=gated, activation="silu", batch=2, groups=2)
    layer = frozen(given, rule)
    found = layer.forward(given.x) + layer.bias_part()
    torch.testing.assert_close(found, output_of(given), rtol=0, atol=1e-11)


@every_order
@every_rule
def test_the_adjoint_is_the_transpose(order, rule, problem):
    """``⟨g, L v⟩ = ⟨Lᵀ g, v⟩`` for any v and g, and the same for a stack of them."""
    given = problem(order, batch=2, groups=2, gated=True, activation="silu")
    layer = frozen(given, rule)
    generator = torch.Generator().manual_seed(3)
    v, g = torch.randn(2, 3, *given.x.shape, generator=generator, dtype=torch.float64)
    scores = layer_scores(layer, g)
    forward, backward = layer.forward(v), scores.arriving
    assert scores.others == {}
    for place in range(3):
        torch.testing.assert_close(
            (g[place] * forward[place]).sum(), (backward[place] * v[place]).sum()
        )
    torch.testing.assert_close(layer.forward(v[1]), forward[1], rtol=0, atol=1e-12)


@in_one_case("order", ["post", "pre", "both"])
def test_parts_are_the_linear_face_of_single_tokens(order, problem):
    """Without biases a token's part is what the layer makes of this token alone."""
    given = problem(order, biases=False)
    layer = frozen(given)
    n = given.x.shape[1]
    alone = torch.zeros(n, *given.x.shape, dtype=torch.float64)
    alone[range(n), 0, range(n)] = given.x[0]
    norms = layer.forward(alone)[:, 0].norm(dim=-1).T  # (i, j)
    scope = given.layer.scopes[-1]
    found = layer_maps(layer, [scope]).norms[scope][0]
    assert largest_error(found, norms) < 1e-11


def test_shapley_values_cannot_be_composed(problem):
    given = problem("post")
    layer = frozen(given, "shapley")
    for face in (
        lambda: layer.forward(given.x),
        lambda: layer_scores(layer, given.x),
        layer.bias_part,
    ):
        with pytest.raises(InputError, match="not linear"):
            face()


# Two sequences ------------------------------------------------------------------------------------


def test_residuals_do_not_add_two_mixtures_of_the_same_tokens(problem):
    given = problem("post")
    attention, norm = given.layer.attention, given.layer.steps[3]
    steps = [attention, Branch(), norm, Residual()]
    with pytest.raises(InputError):
        replace(given, layer=Layer(steps)).solve()
