"""The steps of a layer that are no feed-forward block of their own: what each of them holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlens.feed_forward import FeedForward
from normlens.linear_map import Linear, Projection, cast


@dataclass(frozen=True, eq=False)
class Branch:
    """The point whose parts a residual connection adds back, behind the steps in `through`."""

    through: tuple[Projection | Norm, ...] = ()  # only before the attention

    symbol = ""

    def to(self, dtype: torch.dtype, split: bool) -> Branch:
        """The same with all weights in `dtype`."""
        return Branch(tuple(cast(step, dtype, split) for step in self.through))


@dataclass(frozen=True, eq=False)
class Residual:
    """``y ↦ y + (y at the last branch)``."""

    symbol = "RES"


@dataclass(frozen=True, eq=False)
class Norm:
    """LayerNorm (``centred``) or RMSNorm, ``(y − mean) / σ ⊙ γ + β``.

    Without an ε there is no σ: ``y ⊙ γ + β``, which MobileBERT has in the place of its norms.
    """

    gamma: Tensor | None  # (d,)
    beta: Tensor | None  # (d,)
    eps: float | None
    centred: bool
    module: nn.Module | None = None  # where the model computes it

    symbol = "LN"


@dataclass(frozen=True, eq=False)
class Latent:
    """The compressed vector ``norm(x W + b)`` that latent attention projects its values from."""

    down: Linear  # (d, rank)
    norm: Norm


@dataclass(frozen=True, eq=False)
class Attention:
    """Multi-head attention; head h reads the value group ``h // (heads // groups)``."""

    value: Linear  # (d, groups · d_head), or (rank, groups · d_head) behind `latent`
    output: Linear  # (heads · d_head, d)
    heads: int
    groups: int
    weights: nn.Module | None = None  # returns α, alone or beside other outputs
    module: nn.Module | None = None  # returns the attention's output vector
    source: str | None = None  # another sequence that it reads; None: the layer's tokens
    weights_at: int = 1  # the place of α among several outputs of `weights`
    latent: Latent | None = None  # what the value projection reads, if it is not the input itself
    sinks: bool = False  # rows of α may sum to less than 1; the rest belongs to no token

    @property
    def symbol(self) -> str:
        return "ATTN" if self.source is None else "CROSS"


@dataclass(frozen=True, eq=False)
class ParallelFeedForward:
    """A feed-forward block beside the attention: it reads the layer's input token by token."""

    feed_forward: FeedForward
    norm: Norm | None = None

    symbol = "FF"

    @property
    def module(self) -> nn.Module | None:
        return self.feed_forward.module
