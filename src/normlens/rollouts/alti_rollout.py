"""ALTI: how much closer to a target's vector a source's part brings it, in the L1 norm.

    c_ij = max(0, ‖y_i‖₁ − ‖y_i − F_i(x_j)‖₁),    rows to 1, rollout

Ferrando et al. 2022. Its authors take the attention block of a post-LN layer: y and F behind ATTN
RES LN (scope "LN1"; its counterpart in a pre-LN layer is ATTN RES, "RES1"). By default this module
takes the whole layer, whose output is what the next layer reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normlens.decomposition import RULES, freeze
from normlens.decomposition.completeness import relative_error
from normlens.decomposition.source_parts import source_memory, source_parts, unowned_bias
from normlens.errors import InputError, MemoryLimitError, valid_choice
from normlens.nonlinearities import NOT_LINEAR, SHAPLEY
from normlens.results.maps import Maps
from normlens.rollouts.layerwise import (
    Given,
    RolloutOptions,
    as_given,
    rolled_maps,
    sequences,
    traced_maps,
)
from normlens.scopes import WEIGHT_SCOPES, resolve
from normlens.tracing.recorder import LayerTrace

if TYPE_CHECKING:
    from normlens.lens import Lens


def contributions(y: Tensor, parts: Tensor) -> Tensor:
    """``max(0, ‖y_i‖₁ − ‖y_i − F_i(x_j)‖₁)``: vectors (b, i, d), parts (j, b, i, d) → (b, i, j).

    The difference is taken dimension by dimension: two large sums would cancel where a part is
    small.
    """
    closer = (y.abs() - (y - parts).abs()).sum(-1)  # (j, b, i)
    return closer.clamp_min(0).permute(1, 2, 0)


def alti(
    lens: Lens,
    text: Given,
    options: RolloutOptions = RolloutOptions(),
    *,
    scope: str | None = None,
    nonlinearity: str = "ig",
) -> Maps | list[Maps]:
    """ALTI of a text, as maps [layer, target, source]; a list gives a list.

    `scope` says behind which component vectors and parts are taken; without it, behind the whole
    layer. `nonlinearity` is the rule for the feed-forward block, "ig", "ig-bias" or "gradient".
    """
    name = lens.scopes[-1] if scope is None else resolve(scope, lens.scopes)
    if name in WEIGHT_SCOPES:
        raise InputError(f"ALTI compares vectors; {name} has none: take a scope that ends in -N")
    if valid_choice(nonlinearity, RULES, "rule for the nonlinearity") == SHAPLEY:
        raise InputError(NOT_LINEAR)
    encoded, many = sequences(lens, text, options)
    if options.memory_limit is not None:
        _check_limit(lens, max(map(len, encoded), default=0), options.limit)

    def of_layer(traced: LayerTrace, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        return contributions_of_layer(traced, lengths, name, nonlinearity, options.limit)

    maps = rolled_maps(
        lens,
        encoded,
        lambda batch: traced_maps(lens, batch, name, of_layer),
        options,
        scope=name,
        method="alti",
        rule=nonlinearity,
    )
    return as_given(maps, many)


def contributions_of_layer(
    traced: LayerTrace, lengths: Sequence[int], scope: str, rule: str, limit: int
) -> tuple[Tensor, Tensor]:
    """The contributions (b, i, j) of one layer behind `scope`, and the error of parts and bias.

    Parts exist for as many sources at a time as `limit` bytes hold.
    """
    layer, x = traced.layer, traced.x
    (last,) = (step for step, name in layer.scope_of_step.items() if name == scope)
    vectors: dict[int, Tensor] = {}
    frozen = freeze(
        layer,
        x,
        traced.alphas,
        lengths,
        rule,
        until=last,
        parts=False,
        observe=vectors.__setitem__,
    )
    y = vectors[last]
    b, n, _ = x.shape
    at_once = max(1, limit // source_memory(layer, b, n, x.element_size()))
    pairs = x.new_zeros(b, n, n)
    total = unowned_bias(frozen)
    for first in range(0, n, at_once):
        stop = min(first + at_once, n)
        parts = source_parts(frozen, first, stop)
        pairs[..., first:stop] = contributions(y, parts)
        total = total + parts.sum(0)
    return pairs, relative_error(total, traced.real.get(last, y), lengths)


def _check_limit(lens: Lens, n: int, limit: int) -> None:
    """Raise where a memory limit of the user's does not hold the parts of one source."""
    itemsize = torch.empty(0, dtype=lens.compute_dtype).element_size()
    least = max(source_memory(layer, 1, n, itemsize) for layer in lens.layers)
    if limit < least:
        raise MemoryLimitError(
            f"the memory limit is too low for {n} tokens: the parts of one source take "
            f"{least / (1 << 20):.1f} MB; give that much, leave the limit out, or shorten the text"
        )
