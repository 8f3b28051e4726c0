"""The analysis that an estimate is for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from normlens.decomposition.devices import kernels_run_on
from normlens.decomposition.engine import kernel_precision
from normlens.decomposition.fused.precision import Precision
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.precisions import AUTO


@dataclass(frozen=True)
class Analysis:
    """The analysis to estimate: lengths, layers, scopes, options and device."""

    tokens: int
    layers: tuple[int, ...]  # from 0
    scopes: tuple[str, ...]
    batch: int = 1
    heads: bool = False
    rule: str = "ig"
    samples: int = 64
    memory_limit: int | None = None
    device: str = "cpu"  # need not be in this machine
    precision: str = AUTO  # of the kernels' products

    def has_kernels(self, sizes: ModelSizes) -> bool:
        """Whether the GPU kernels support this device and the model's precision."""
        dtype = torch.float64 if sizes.compute_itemsize == 8 else torch.float32
        return kernels_run_on(torch.device(self.device), dtype)

    @property
    def kernel_precision(self) -> Precision:
        """The precision of the kernels' products."""
        return kernel_precision(self.precision)

    def depth(self, layer: LayerSizes) -> int:
        """The number of components of the deepest scope, from the attention on; 0: none."""
        prefix, deepest = "", 0
        for position, symbol in enumerate(layer.symbols, start=1):
            prefix += symbol
            if f"{prefix}-N" in self.scopes:
                deepest = position
        return max(deepest, 1) if self.heads else deepest

    def reaches_feed_forward(self, layer: LayerSizes) -> bool:
        """Whether the deepest scope stands behind the feed-forward block."""
        at = layer.feed_forward_at
        return at is not None and self.depth(layer) > at

    def scopes_behind(self, layer: LayerSizes) -> int:
        """The number of scopes from the feed-forward block on, up to the deepest requested one."""
        assert layer.feed_forward_at is not None
        return self.depth(layer) - layer.feed_forward_at

    def tail(self, layer: LayerSizes) -> tuple[str, ...]:
        """The components behind the feed-forward block, up to the deepest scope."""
        assert layer.feed_forward_at is not None
        return layer.symbols[layer.feed_forward_at + 1 : self.depth(layer)]

    def wants_factored(self, layer: LayerSizes) -> bool:
        """Whether norms of parts before the feed-forward block are requested."""
        before = len(layer.symbols) if layer.feed_forward_at is None else layer.feed_forward_at
        return any(self.wants(layer, position) for position in range(before))

    def wants(self, layer: LayerSizes, position: int) -> bool:
        """Whether the scope that ends with this component is requested."""
        return f"{''.join(layer.symbols[: position + 1])}-N" in self.scopes
