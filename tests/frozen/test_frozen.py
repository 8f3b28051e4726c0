"""The frozen layer: its faces agree with each other, with autograd, and with the real layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from one_case import in_one_case
from reference import largest_error, reference

from normlens.errors import InputError
from normlens.frozen.feedforward import hidden
from normlens.frozen.layer import freeze
from normlens.frozen.norm_maps import layer_maps
from normlens.frozen.scores import layer_scores
from normlens.layers import Attention, Branch, FeedForward, Layer, Linear, Norm, Residual

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


def decoder_problem(order: str, problem):
    """A decoder's layer: attention to its own tokens, then to five vectors of another sequence."""
    generator = torch.Generator().manual_seed(5)
    d, heads = 12, 4

    def draw(*shape: int) -> torch.Tensor:
        return 0.4 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    given = problem(order, batch=2, causal=True)
    cross = Attention(Linear(draw(d, d), draw(d)), Linear(draw(d, d), draw(d)), heads, heads,
                      source="encoder")  # fmt: skip
    norm = Norm(1 + draw(d), draw(d), 1e-5, True)
    steps = list(given.layer.steps)
    behind = next(i for i, step in enumerate(steps) if isinstance(step, Residual)) + 1
    if order == "post":
        behind += 1
        added = [Branch(), cross, Residual(), norm]
    else:
        added = [Branch(), norm, cross, Residual()]
    layer = Layer([*steps[:behind], *added, *steps[behind:]], given.layer.reach)
    e = draw(2, 5, d)
    beta = draw(2, heads, 6, 5).softmax(-1)
    return layer, given.x, given.alpha, e, beta


def materialised(layer, x, alpha, e, beta):
    """Every part (i, [encoder | decoder], d) of one sequence behind each scope, step by step."""
    n, k, d = len(x), len(e), x.shape[1]
    owned, bias = torch.zeros(n, k + n, d, dtype=x.dtype), torch.zeros(n, d, dtype=x.dtype)
    owned[range(n), range(k, k + n)] = x
    saved, found, mixed = [], {}, False
    for index, step in enumerate(layer.steps):
        if isinstance(step, Branch):
            saved.append((owned, bias))
        elif isinstance(step, Residual):
            before = saved.pop()
            owned, bias = owned + before[0], bias + before[1]
        elif isinstance(step, Norm):
            y = owned.sum(1) + bias
            sigma = (y.var(-1, correction=0) + step.eps).sqrt()[:, None]
            owned = (owned - owned.mean(-1, keepdim=True)) / sigma[..., None] * step.gamma
            bias = (bias - bias.mean(-1, keepdim=True)) / sigma * step.gamma + step.beta
            if not mixed:
                owned[range(n), range(k, k + n)] += bias
                bias = torch.zeros_like(bias)
        elif isinstance(step, Attention):
            own = step.source is None
            s, weights = (owned.sum(1) + bias, alpha) if own else (e, beta)
            new = torch.zeros_like(owned)
            for h in range(step.heads):
                columns = slice(h * 3, h * 3 + 3)
                value = s @ step.value.weight[:, columns] + step.value.bias[columns]
                f = value @ step.output.weight[columns]
                new[:, slice(k, None) if own else slice(k)] += weights[h][..., None] * f
            owned, bias, mixed = new, step.output.bias.expand(n, d), True
        elif isinstance(step, FeedForward):
            z = step.up(owned.sum(1) + bias)
            slope = hidden(step, owned.sum(1) + bias) / z
            owned = (owned @ step.up.weight * slope[:, None]) @ step.down.weight
            bias = step.down(step.up(bias) * slope)
        if index in layer.scope_of_step:
            found[layer.scope_of_step[index]] = owned, bias
    return found


@in_one_case("order", ["post", "pre"])
def test_a_layer_that_reads_another_sequence(order, problem):
    """Both groups of sources stay factored; columns are the other sequence, then the own tokens."""
    layer, x, alpha, e, beta = decoder_problem(order, problem)
    assert "CROSS" in layer.component_sequence
    frozen_layer = freeze(layer, x, [alpha, beta], [6, 6], sources={"encoder": e})
    scopes = list(layer.scope_of_step.values())
    real = {
        index: torch.stack(
            [sum_of(materialised(layer, x[b], alpha[b], e[b], beta[b])[scope]) for b in range(2)]
        )
        for index, scope in layer.scope_of_step.items()
    }
    found = layer_maps(frozen_layer, scopes, real=real)
    for b in range(2):
        expected = materialised(layer, x[b], alpha[b], e[b], beta[b])
        for scope in scopes:
            owned, _ = expected[scope]
            norms = owned.norm(dim=-1)
            if "CROSS" not in scope:  # the other sequence has not come in yet
                assert not norms[:, :5].any()
                norms = norms[:, 5:]
            assert largest_error(found.norms[scope][b], norms) < 1e-11, scope
    assert max(found.completeness.values()) < 1e-12


def sum_of(parts):
    owned, bias = parts
    return owned.sum(1) + bias


@in_one_case("order", ["post", "pre"])
def test_faces_of_a_layer_that_reads_another_sequence(order, problem):
    layer, x, alpha, e, beta = decoder_problem(order, problem)
    frozen_layer = freeze(layer, x, [alpha, beta], [6, 6], sources={"encoder": e})
    last = layer.scope_of_step[max(layer.scope_of_step)]
    output = torch.stack(
        [sum_of(materialised(layer, x[b], alpha[b], e[b], beta[b])[last]) for b in range(2)]
    )
    found = frozen_layer.forward(x, {"encoder": e}) + frozen_layer.bias_part()
    torch.testing.assert_close(found, output, rtol=0, atol=1e-11)
    g = torch.randn_like(x)
    scores = layer_scores(frozen_layer, g)
    total = (scores.arriving * x).sum() + (scores.others["encoder"] * e).sum()
    torch.testing.assert_close(total, (g * (output - frozen_layer.bias_part())).sum())


def test_residuals_do_not_add_two_mixtures_of_the_same_tokens(problem):
    given = problem("post")
    attention, norm = given.layer.attention, given.layer.steps[3]
    steps = [attention, Branch(), norm, Residual()]
    with pytest.raises(ValueError, match="must branch where its sources are not mixed yet"):
        replace(given, layer=Layer(steps)).solve()
