"""Scores carried back through a frozen layer: nothing is lost, and autograd agrees."""

from __future__ import annotations

import pytest
import torch
from one_case import in_one_case

from normlens.errors import InputError
from normlens.frozen.attention import FrozenAttention
from normlens.frozen.layer import FrozenLayer, freeze
from normlens.frozen.parts import FrozenBranch, FrozenResidual
from normlens.frozen.scores import (
    layer_flow,
    layer_scores,
)
from normlens.layers import Attention, Branch, FeedForward, Layer, Linear, Norm, Residual

ORDERS = ["post", "pre", "parallel", "both", "bare", "branch-normed"]
every_order = in_one_case("order", ORDERS)
every_rule = in_one_case("rule", ["ig", "ig-bias", "gradient"])


def frozen(given, rule: str = "ig", parts: bool = False):
    lengths = [given.x.shape[1]] * len(given.x)
    return freeze(given.layer, given.x, given.alpha, lengths, rule, parts=parts)


def gradient(given, *many: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(*many, *given.x.shape, generator=generator, dtype=torch.float64)


@every_order
@every_rule
@in_one_case("has", ["biases", "betas", "biases betas"])
def test_what_arrives_and_what_no_token_owns_are_the_score(order, rule, has, problem):
    owners = {name: name in has for name in ("biases", "betas")}
    given = problem(order, batch=2, groups=2, gated=True, activation="silu", **owners)
    layer, g = frozen(given, rule), gradient(given, 3)
    scores = layer_scores(layer, g)
    bias_part = sum((part.sum(-1) for part in scores.bias_part.values()), g.new_zeros(3, 2))
    torch.testing.assert_close(bias_part, (g * layer.bias_part()).sum((-1, -2)), rtol=0, atol=1e-10)
    total = (scores.arriving * given.x).sum((-1, -2)) + bias_part
    output = layer.forward(given.x) + layer.bias_part()
    torch.testing.assert_close(total, (g * output).sum((-1, -2)), rtol=0, atol=1e-10)


@every_order
def test_columns_of_a_flow_are_the_sources_and_rows_the_targets(order, problem):
    given = problem(order, batch=2, groups=2)
    layer, g = frozen(given), gradient(given, 2)
    scores = layer_scores(layer, g)
    whole, _ = layer_flow(layer, scores)
    by_head, _ = layer_flow(layer, scores, by_head=True)
    beside = torch.diag_embed((scores.beside * given.x).sum(-1))
    torch.testing.assert_close(whole, by_head.sum(-3) + beside, rtol=0, atol=1e-11)
    columns = (scores.arriving * given.x).sum(-1)
    torch.testing.assert_close(whole.sum(-2), columns, rtol=0, atol=1e-11)
    rows = (g * layer.forward(given.x)).sum(-1)
    torch.testing.assert_close(whole.sum(-1), rows, rtol=0, atol=1e-11)


@every_order
def test_a_flow_behind_a_scope_is_the_directed_part_of_single_tokens(order, problem):
    """``L_ij = g_i · F_i(x_j)`` with F_i(x_j) pushed alone through the steps of the scope."""
    given = problem(order)
    layer, g = frozen(given), gradient(given)
    n = given.x.shape[1]
    alone = torch.zeros(n, *given.x.shape, dtype=torch.float64)
    alone[range(n), 0, range(n)] = given.x[0]
    steps = list(given.layer.scope_of_step)
    kept = layer_scores(layer, g, keep=steps).gradients
    for step in steps:
        head = freeze(given.layer, given.x, given.alpha, [n], until=step, parts=False)
        parts = head.forward(alone)[:, 0]  # (j, i, d)
        expected = torch.einsum("id,jid->ij", kept[step][0], parts)
        found, _ = layer_flow(layer, layer_scores(layer, kept[step], last=step))
        torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-11)


@every_order
def test_every_way_through_a_layer_belongs_to_one_component(order, problem):
    """To the first block on it: what is gone without that block, later blocks being there."""
    given = problem(order, gated=True, activation="silu", groups=2)
    layer, g = frozen(given), gradient(given)
    scores = layer_scores(layer, g)
    left = (g * layer.forward(given.x)).sum(-1)
    blocks = sorted(scores.ways)
    assert len(blocks) == 2
    for count, block in enumerate(blocks, 1):
        without = (g * _forward_without(layer, blocks[:count])).sum(-1)
        torch.testing.assert_close(scores.ways[block], left - without, rtol=0, atol=1e-11)
        left = without
    residual = torch.zeros_like(left) if scores.residual is None else scores.residual
    torch.testing.assert_close(residual, left, rtol=0, atol=1e-11)
    heads = layer_flow(layer, scores, by_head=True)[0].sum(-1)
    torch.testing.assert_close(scores.heads[blocks[0]], heads, rtol=0, atol=1e-11)


def _forward_without(layer: FrozenLayer, blocks: list[int]) -> torch.Tensor:
    """What a layer makes of its input where the output of some blocks is 0, without any bias."""
    v, saved = layer.x, []
    for index, step in enumerate(layer.steps):
        if isinstance(step, FrozenBranch):
            saved.append(v)
        elif isinstance(step, FrozenResidual):
            v = v + saved.pop()
        elif type(step).__name__ == "FrozenParallelFeedForward":
            v = v if index in blocks else v + step.linear(layer.x)
        else:
            v = torch.zeros_like(v) if index in blocks else step.linear(v)
    return v


def test_every_component_has_a_name_of_its_own(problem):
    """What biases add is kept by name: two norms of one name would lose one of them."""
    norm, *rest = problem("branch-normed").layer.steps
    names = Layer([norm, norm, *rest]).step_names
    assert list(names.values()) == ["(LN1)", "(LN2)", "ATTN", "RES1", "LN", "FF", "RES2"]


# A layer that reads another sequence --------------------------------------------------------------


def decoder(order: str) -> tuple[FrozenLayer, torch.Tensor]:
    """A frozen layer of 5 tokens that reads 4 of another sequence, and these (b, k, d)."""
    generator = torch.Generator().manual_seed(11)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def norm() -> Norm:
        return Norm(1 + 0.3 * draw(6), draw(6), 1e-5, True)

    def linear(rows: int, columns: int) -> Linear:
        return Linear(draw(rows, columns), draw(columns))

    own = Attention(linear(6, 6), linear(6, 6), 2, 2)
    cross = Attention(linear(6, 6), linear(6, 6), 3, 3, source="encoder")
    block = FeedForward(linear(6, 9), linear(9, 6), "gelu")
    parts: list = [cross, own, block] if order.startswith("cross") else [own, cross, block]
    steps: list = []
    for part in parts:
        if order.endswith("pre"):
            steps += [Branch(), norm(), part, Residual()]
        else:
            steps += [Branch(), part, Residual(), norm()]
    x, e = draw(2, 5, 6), draw(2, 4, 6)
    alphas = {own: draw(2, 2, 5, 5).softmax(-1), cross: draw(2, 3, 5, 4).softmax(-1)}
    weights = [alphas[part] for part in parts if isinstance(part, Attention)]
    return freeze(Layer(steps), x, weights, [5, 5], sources={"encoder": e}, parts=False), e


@in_one_case("order", ["post", "pre"])
def test_what_arrives_at_both_sequences_and_biases_are_the_score(order):
    layer, e = decoder(order)
    generator = torch.Generator().manual_seed(3)
    g = torch.randn(3, *layer.x.shape, generator=generator, dtype=torch.float64)
    scores = layer_scores(layer, g)
    bias_part = sum(part.sum(-1) for part in scores.bias_part.values())
    total = (scores.arriving * layer.x).sum((-1, -2)) + bias_part
    total = total + (scores.others["encoder"] * e).sum((-1, -2))
    output = layer.forward(layer.x, {"encoder": e}) + layer.bias_part()
    torch.testing.assert_close(total, (g * output).sum((-1, -2)), rtol=0, atol=1e-9)


@in_one_case("order", ["post", "pre"])
def test_both_flows_of_a_layer_lose_nothing(order):
    layer, e = decoder(order)
    g = torch.randn(layer.x.shape, generator=torch.Generator().manual_seed(3)).double()
    scores = layer_scores(layer, g, keep=range(len(layer.steps)))
    own, other = layer_flow(layer, scores)
    columns = (scores.arriving * layer.x).sum(-1), (scores.others["encoder"] * e).sum(-1)
    torch.testing.assert_close(own.sum(-2), columns[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(other.sum(-2), columns[1], rtol=0, atol=1e-10)
    rows = (g * layer.forward(layer.x, {"encoder": e})).sum(-1)
    torch.testing.assert_close(own.sum(-1) + other.sum(-1), rows, rtol=0, atol=1e-10)
    ways = sum(scores.ways.values(), scores.residual)
    torch.testing.assert_close(ways, rows, rtol=0, atol=1e-10)
    _, by_head = layer_flow(layer, scores, by_head=True)
    torch.testing.assert_close(by_head.sum(-3), other, rtol=0, atol=1e-11)
    # Behind the first attention nothing of the other sequence has arrived.
    first = next(k for k, step in enumerate(layer.steps) if isinstance(step, FrozenAttention))
    behind = layer_scores(layer, scores.gradients[first], last=first)
    assert layer_flow(layer, behind)[1] is None


def test_another_sequence_that_is_read_first_is_refused():
    """Its tokens would be mixed by the attention, so that no flow map could name them."""
    layer, _ = decoder("cross-post")
    with pytest.raises(InputError, match="read another sequence before their own tokens"):
        layer_scores(layer, layer.x)
