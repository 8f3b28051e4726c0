"""Feed-forward blocks: one that all tokens use, and a mixture of which each token uses some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normlens.linear_map import Linear, cast


@dataclass(frozen=True, eq=False)
class FeedForward:
    """``g(y W_up) W_down``, or gated ``(g(y W_gate) ⊙ y W_up) W_down``."""

    up: Linear  # (d, m)
    down: Linear  # (m, d)
    activation: str
    gate: Linear | None = None  # (d, m)
    module: nn.Module | None = None  # returns the block's output vector
    #: gpt-oss limits both arguments: ``g(min(a, L)) ⊙ (clip(u, −L, L) + 1)``
    limit: float | None = None

    symbol = "FF"


@dataclass(frozen=True, eq=False)
class Routing:
    """The experts that each token used in one run, and the weights that they had."""

    experts: Tensor  # (b, i, k), numbers of experts
    weights: Tensor  # (b, i, k)
    shared: Tensor | None = None  # (b, i), the weight of the shared expert; None: 1


@dataclass(frozen=True, eq=False)
class Experts:
    """``Σ_e w_ie FF_e(y_i)`` over the experts that token i used, and one that all tokens use.

    Which experts those are is decided while the model runs, and read there.
    """

    members: Sequence[FeedForward]  # of equal sizes
    used: int  # experts of one token
    router: nn.Module  # the module at whose call the routing can be read
    #: what a call of `router` (arguments, keywords, output) says: experts and weights, (token, k)
    read: Callable[[tuple[Any, ...], dict[str, Any], Any], tuple[Tensor, Tensor]]
    module: nn.Module | None = None  # returns the block's output vector
    shared: FeedForward | None = None
    shared_gate: nn.Module | None = None  # σ of its output is the weight of `shared`; None: 1
    weighs_input: bool = False  # w multiplies what an expert reads, not what it returns
    scale: float = 1.0  # what the model multiplies the whole output by
    routing: Routing | None = None  # of one run
    precision: tuple[torch.dtype, bool] | None = None  # of `member`, as `cast` takes it

    symbol = "FF"

    def __post_init__(self) -> None:
        if self.weighs_input and self.scale != 1:
            raise ValueError("experts whose input is weighed have no factor behind them")

    def to(self, dtype: torch.dtype, split: bool) -> Experts:
        """The same block in `dtype`, to which experts are converted one at a time, when asked for.

        A copy of all of a layer's experts could be larger than the rest of the model.
        """
        return replace(self, precision=(dtype, split))

    def member(self, expert: int | None) -> FeedForward:
        """One expert in the block's precision; None is the shared one."""
        block = self.shared if expert is None else self.members[expert]
        assert block is not None
        return block if self.precision is None else cast(block, *self.precision)

    @property
    def examples(self) -> tuple[FeedForward, ...]:
        """One of the experts, which are all alike, and the shared one."""
        return (self.members[0],) if self.shared is None else (self.members[0], self.shared)

    @property
    def active(self) -> int:
        """The neurons that a token uses, in all of its experts."""
        shared = 0 if self.shared is None else self.shared.up.weight.shape[1]
        return self.used * self.members[0].up.weight.shape[1] + shared

    @property
    def widest(self) -> int:
        """The neurons of the largest expert."""
        return max(block.up.weight.shape[1] for block in self.examples)
