"""Products of weights that a prepared lens keeps, brought up to date with its model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from normlens.decomposition.head_products import ProductStore
from normlens.tracing.turns import alone_with_model

if TYPE_CHECKING:
    from normlens.lens import Lens


def refresh_products(products: ProductStore, lens: Lens, layers: Iterable[int]) -> None:
    """Form the products of these layers that are missing, or whose weights have changed."""

    def refresh() -> None:
        blocks = list(lens.adapter.blocks())
        described = {block: lens.adapter.layer(block) for block in blocks}
        wanted = {blocks[layer] for layer in layers}
        products.refresh(described, wanted, lens.compute_dtype, steady=lens.weights_are_steady)

    alone_with_model(lens.model, refresh)
