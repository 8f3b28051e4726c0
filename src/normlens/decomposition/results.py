"""The maps of one layer, as its decomposition returns them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class LayerMaps:
    """The maps of one layer for a batch; rows and columns beyond a sequence's length are undefined.

    Columns are the tokens of any other sequence that the layer reads, and then the layer's tokens.
    """

    norms: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, i, j)
    own: dict[str, Tensor] = field(default_factory=dict)  # scope → ‖F_i(x_i)‖ (b, i)
    others: dict[str, Tensor] = field(default_factory=dict)  # scope → ‖Σ_{j≠i} F_i(x_j)‖ (b, i)
    head_maps: dict[str, Tensor] = field(default_factory=dict)  # scope → (b, h, i, j)
    standard_error: dict[str, Tensor] = field(default_factory=dict)  # Shapley only
    completeness: dict[str, Tensor] = field(default_factory=dict)  # scope → worst relative error
    precision: str | None = None  # of the feed-forward products; None: there were none
    #: errors of the kernels' parts: of their sum, and of a sample of their norms
    kernel_error: Tensor | None = None
    sampled_error: Tensor | None = None
    statistics: FeedForwardStatistics | None = None


@dataclass(frozen=True)
class FeedForwardStatistics:
    """The block's vectors and the vector that bypasses it (Kobayashi et al. 2024, section 6)."""

    output: Tensor  # (b, i, d) the block's real output
    input: Tensor  # (b, i, d) its real input
    bypassed: Tensor | None = None  # (b, i, d) the vector that the residual adds to it
    ordinary: Tensor | None = None  # (b, i, j) the map behind the block without special dimensions
