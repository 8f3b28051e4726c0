"""Random layers that no model defines, for tests of the algebra alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from normlens.frozen.head_products import KeptProducts
from normlens.frozen.layer import freeze
from normlens.frozen.norm_maps import LayerMaps, last_frozen_step, layer_maps
from normlens.layers import (
    Attention,
    Branch,
    FeedForward,
    Layer,
    Linear,
    Norm,
    ParallelFeedForward,
    Reach,
    Residual,
)
from normlens.options import AnalysisOptions


def decompose_layer(
    layer: Layer,
    x: Tensor,
    alpha: Tensor,
    lengths: Sequence[int],
    scopes: Sequence[str],
    options: AnalysisOptions = AnalysisOptions(),
    real: Mapping[int, Tensor] | None = None,
    kept: KeptProducts | None = None,
) -> LayerMaps:
    """Freeze one layer as far as the scopes need it, and return its maps."""
    until = last_frozen_step(layer, scopes, options)
    frozen = freeze(layer, x, alpha, lengths, options.nonlinearity, until=until)
    return layer_maps(frozen, scopes, options, real, kept)


@dataclass(frozen=True)
class Problem:
    """A layer with an input and attention weights."""

    layer: Layer
    x: Tensor  # (b, j, d)
    alpha: Tensor  # (b, h, i, j)

    def solve(self, scopes: list[str] | None = None, rule: str = "ig", **options: Any) -> LayerMaps:
        b, n, _ = self.x.shape
        return decompose_layer(
            self.layer,
            self.x,
            self.alpha,
            [n] * b,
            self.layer.scopes if scopes is None else scopes,
            AnalysisOptions(nonlinearity=rule, **options),
        )


def random_problem(
    order: str = "post",
    *,
    n: int = 6,
    d: int = 12,
    m: int = 20,
    heads: int = 4,
    groups: int | None = None,
    activation: str = "gelu",
    gated: bool = False,
    centred: bool = True,
    biases: bool = True,
    betas: bool | None = None,
    causal: bool = False,
    batch: int = 1,
    scale: float = 0.4,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Problem:
    """`order` is "post", "pre", "parallel" or "both" (norms before and behind each branch).

    `betas` gives norms a β or none; without it they have one where linear maps have biases.
    """
    betas = biases if betas is None else betas
    generator = torch.Generator().manual_seed(seed)
    groups = heads if groups is None else groups
    width = d // heads

    def draw(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def linear(rows: int, columns: int) -> Linear:
        return Linear(draw(rows, columns), draw(columns) if biases else None)

    def norm() -> Norm:
        beta = draw(d) if centred and betas else None
        return Norm(1 + draw(d), beta, 1e-5, centred)

    attention = Attention(linear(d, groups * width), linear(d, d), heads, groups)
    ff = FeedForward(linear(d, m), linear(m, d), activation, linear(d, m) if gated else None)
    start, end = Branch(), Residual()
    steps = {
        "post": [start, attention, end, norm(), start, ff, end, norm()],
        "pre": [start, norm(), attention, end, start, norm(), ff, end],
        "parallel": [start, norm(), attention, ParallelFeedForward(ff, norm()), end],
        "both": [start, norm(), attention, norm(), end, start, norm(), ff, norm(), end],
        "bare": [attention, ff],
        # BLOOM may branch behind the first norm, whose β is then the token's on both ways.
        "branch-normed": [norm(), start, attention, end, norm(), start, ff, end],
    }[order]
    scores = 4 * draw(batch, heads, n, n)
    if causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
    reach = Reach(None, 0) if causal else Reach()
    return Problem(Layer(steps, reach), 2 * draw(batch, n, d), scores.softmax(-1))


@pytest.fixture
def problem() -> Any:
    return random_problem
