"""The attention's sums, and what they cost."""

from __future__ import annotations

import torch
from one_case import in_one_case
from reference import largest_error, reference
from torch.utils.flop_counter import FlopCounterMode

from normlens.frozen.attention import FrozenAttention
from normlens.frozen.parts import Parts


def frozen(given) -> FrozenAttention:
    return FrozenAttention.at(given.layer.attention, given.x, given.alpha, given.layer.reach)


@in_one_case("groups", [1, 2, 4])
@in_one_case("biases", [False, True])
def test_attention_gives_the_sums_of_its_parts(groups, biases, problem):
    given = problem("post", groups=groups, biases=biases, batch=2)
    found = frozen(given).on_parts(Parts(given.x))
    for index in range(2):
        expected = reference(given.layer, given.x[index], given.alpha[index]).parts["ATTN-N"]
        own = expected.owned.diagonal().T  # (i, d)
        assert largest_error(found.own[index], own) < 1e-12
        assert largest_error(found.mixed[index], expected.owned.sum(1) - own) < 1e-12
        bias = expected.bias if found.bias is None else found.bias.expand_as(expected.bias)
        torch.testing.assert_close(bias, expected.bias, rtol=0, atol=1e-15)


def test_attention_sums_cost_no_more_than_the_attention_itself(problem):
    """Three products with d×d weights and one with α: heads are mixed before ``W_O``."""
    n, d = 40, 16
    given = problem("post", n=n, d=d, heads=4, biases=False)
    with FlopCounterMode(display=False) as counted:
        attention = frozen(given)
        _ = attention.output
        attention.on_parts(Parts(given.x))
    assert counted.get_total_flops() == 3 * 2 * n * d * d + 2 * n * n * d
