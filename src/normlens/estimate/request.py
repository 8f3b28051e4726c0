"""The analysis that an estimate is for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from normlens.components import Reach
from normlens.decomposition.devices import kernels_run_on
from normlens.decomposition.engine import kernel_precision
from normlens.decomposition.fused.precision import Precision
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.models.two_stacks import DECODER, ENCODER
from normlens.precisions import AUTO


@dataclass(frozen=True)
class SourceGroup:
    """The sources that one attention of a layer reads, for one sequence."""

    heads: int
    groups: int
    d_head: int
    targets: int
    sources: int
    reach: Reach
    is_own: bool  # whether they are the targets' tokens

    @property
    def blocks(self) -> int:
        """Squares that the kernels cut the sources into (`decomposition.squares`)."""
        return 1 if self.is_own else -(-self.sources // self.targets)


@dataclass(frozen=True)
class Analysis:
    """The analysis to estimate: lengths, layers, scopes, options and device.

    Of an encoder–decoder `tokens` are the source's and `scopes` the decoder's.
    """

    tokens: int
    layers: tuple[int, ...]  # from 0; an encoder's come first
    scopes: tuple[str, ...]
    batch: int = 1
    heads: bool = False
    rule: str = "ig"
    samples: int = 64
    memory_limit: int | None = None
    device: str = "cpu"  # need not be in this machine
    precision: str = AUTO  # of the kernels' products
    target_tokens: int | None = None  # what a decoder reads; None: the model has one stack
    encoder_scopes: tuple[str, ...] = ()

    def has_kernels(self, sizes: ModelSizes) -> bool:
        """Whether the GPU kernels support this device and the model's precision."""
        dtype = torch.float64 if sizes.compute_itemsize == 8 else torch.float32
        return kernels_run_on(torch.device(self.device), dtype)

    @property
    def kernel_precision(self) -> Precision:
        """The precision of the kernels' products."""
        return kernel_precision(self.precision)

    def targets(self, layer: LayerSizes) -> int:
        """The number of tokens that a layer's stack reads."""
        if layer.stack != DECODER:
            return self.tokens
        assert self.target_tokens is not None
        return self.target_tokens

    def groups(self, layer: LayerSizes) -> list[SourceGroup]:
        """The sources of each of a layer's attentions, its own tokens first.

        Another sequence that a model of one stack reads is taken to be as long as the text.
        """
        n, cross = self.targets(layer), layer.cross
        sizes = layer.heads, layer.groups, layer.d_head
        groups = [SourceGroup(*sizes, n, n, layer.reach, is_own=True)]
        if cross is not None:
            sizes = cross.heads, cross.groups, cross.d_head
            groups.append(SourceGroup(*sizes, n, self.tokens, Reach(), is_own=False))
        return groups

    def scopes_of(self, layer: LayerSizes) -> tuple[str, ...]:
        """The scopes that are requested of a layer's stack."""
        return self.encoder_scopes if layer.stack == ENCODER else self.scopes

    def depth(self, layer: LayerSizes) -> int:
        """The number of components of the deepest scope, from the attention on; 0: none."""
        prefix, deepest = "", 0
        for position, symbol in enumerate(layer.symbols, start=1):
            prefix += symbol
            if f"{prefix}-N" in self.scopes_of(layer):
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
        return f"{''.join(layer.symbols[: position + 1])}-N" in self.scopes_of(layer)
