"""Products B_h W_k of weights, formed for a call or kept by a prepared lens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from normlens.frozen.attention import output_basis
from normlens.frozen.norm import stretch
from normlens.frozen.rules import projections
from normlens.gpu.matmul import LateTensor, formed, times
from normlens.layers import FeedForward, Layer, Norm
from normlens.plan.costs import head_product_elements, head_products_pay
from normlens.trace.locking import alone_with_model

if TYPE_CHECKING:
    from normlens.lens import Lens


# Fingerprints of weights: numbers that depend on every bit, to notice any change.
#
# The bits of a tensor, as 64-bit words x_k, are reduced to ``Σ_k a_k x_k mod 2^64`` with fixed
# random odd a_k. A change of one word always changes the sum; a change of several leaves it as it
# was with a probability near 2^-64. Versions and addresses of tensors would not do: weights that
# are edited through ``.data`` keep both.


ROW = 1 << 15  # words that are multiplied by the same factors
SLAB = 1 << 7  # rows at a time, so that the products stay small beside the weights
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Fingerprint = tuple[Hashable, ...]


def fingerprints(weights: Mapping[Hashable, Sequence[Tensor]]) -> dict[Hashable, Fingerprint]:
    """Fingerprints of some tensors by key: shape, strides, dtype, device and content of each.

    A device is waited for only once.
    """
    tensors = [tensor for group in weights.values() for tensor in group]
    if not tensors:
        return dict.fromkeys(weights, ())
    sums = [_content(formed(tensor)) for tensor in tensors]
    # Layers may lie on several devices.
    numbers = iter(torch.stack([each.to(sums[0].device) for each in sums]).tolist())
    return {
        key: tuple((*description(tensor), next(numbers)) for tensor in group)
        for key, group in weights.items()
    }


def description(tensor: Tensor) -> tuple[Hashable, ...]:
    """The part of a fingerprint that does not need the tensor's content."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _content(tensor: Tensor) -> Tensor:
    """``Σ_k a_k x_k``, a 64-bit number that is still on the tensor's device."""
    data = tensor.detach()
    if data.dim() == 2 and not data.is_contiguous():
        data = data.T  # a weight is often a transposed view; in memory order it needs no copy
    words = data.contiguous().view(-1).view(_WORDS[data.element_size()])
    per_word = 8 // words.element_size()
    if words.storage_offset() % per_word:
        words = words.clone()
    whole = words.numel() // per_word * per_word
    wide = [words[:whole].view(torch.int64), words[whole:].to(torch.int64)]
    return sum((_reduced(part) for part in wide), wide[0].new_zeros(()))


def _reduced(words: Tensor) -> Tensor:
    sums = []
    full = words.numel() // ROW * ROW
    rows = words[:full].view(-1, ROW)
    for start in range(0, len(rows), SLAB):
        sums.append((rows[start : start + SLAB] * _factors(ROW, words.device)).sum(1))
    rest = words[full:]
    sums.append((rest * _factors(ROW, words.device)[: len(rest)]).sum()[None])
    joined = torch.cat(sums)
    # Rows have factors that differ from those of words, or an exchange of rows would go unnoticed.
    return (joined * _factors(len(joined), words.device, seed=1)).sum()


@lru_cache(maxsize=256)
def _factors(count: int, device: torch.device, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    return (2 * drawn + 1).to(device)


# Head products ``B_h W_k``, from a head's value vector to the neurons: formed for a call, or kept.
#
# ``U_jh W_k = v_jh (B_h W_k)``, and the bracket depends on weights alone. Forming it costs as much
# as multiplying the U of d_head tokens by W_k, so it pays for one long text or for many short
# ones. The length of a text decides the first case. The user decides the second (`Lens.prepare`):
# a number must not depend on what was computed before it.


T = TypeVar("T")
Product = Callable[[Tensor, Tensor], Tensor]
ProductTensors = tuple[Tensor, ...]  # B_h W_k (h, d_head, m), one per input projection
Places = tuple[tuple[int, int], ...]  # addresses and versions of weights


class HeadProducts:
    """The head products of one layer in one call: kept ones, or formed where that pays."""

    def __init__(
        self,
        kept: KeptProducts | None,
        basis: Tensor,
        weights: Sequence[Tensor],
        product: Product = times,
    ):
        self._formed = None if kept is None else kept.tensors
        self._always = kept is not None
        self._basis, self._weights, self._product = basis, weights, product

    def used_for(self, n: int) -> bool:
        """Whether n tokens that are treated together use the products; U W_k may cost less."""
        _, d_head, d = self._basis.shape
        return self._always or head_products_pay(d_head, d, n)

    def for_tokens(self, n: int) -> ProductTensors | None:
        """The products for n tokens, or None where they do not pay."""
        if not self.used_for(n):
            return None
        if self._formed is None:
            self._formed = form_products(self._basis, self._weights, self._product)
        return self._formed

    def forget(self) -> None:
        """Let go of products that were formed for this call."""
        if not self._always:
            self._formed = None


def form_products(
    basis: Tensor, weights: Sequence[Tensor], product: Product = times
) -> ProductTensors:
    """Form ``B_h W_k`` for each input projection."""
    return tuple(product(basis, w) for w in weights)


# Kept from call to call -------------------------------------------------------------------------


class KeptProducts:
    """The products of one layer's weights, with a fingerprint of those weights."""

    def __init__(self, store: ProductStore, tensors: ProductTensors, fingerprint: Fingerprint):
        self.tensors, self.fingerprint = tensors, fingerprint
        self.places: Places | None = None  # of the weights when their content was last compared
        self._store = store
        self._operands: dict[Hashable, Any] = {}  # of the kernels
        self._operand_sizes: dict[Hashable, int] = {}

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(t.nbytes for t in self.tensors) + sum(self._operand_sizes.values())

    def operand(self, name: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """The operand called `name`: kept, or formed by `make`, which also tells its bytes.

        A new operand is kept if it fits into the store's limit.
        """
        if name in self._operands:
            return self._operands[name]
        operand, size = make()
        if self._store.size + size <= self._store.limit:
            self._operands[name], self._operand_sizes[name] = operand, size
        return operand


class ProductStore:
    """The products of a model's layers, up to date with their weights, within a limit of bytes.

    The limit and shapes alone decide which layers have room; earlier layers come first.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._kept: dict[Hashable, KeptProducts] = {}

    def of(self, key: Hashable) -> KeptProducts | None:
        """The kept products of a layer, if it has any."""
        return self._kept.get(key)

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(kept.size for kept in self._kept.values())

    def refresh(
        self,
        layers: Mapping[Any, Layer],
        wanted: Collection[Hashable],
        dtype: torch.dtype,
        *,
        steady: bool = False,
    ) -> None:
        """Form products of the `wanted` layers that are missing or belong to older weights.

        While the weights are `steady`, their content is compared once, and then only whether they
        lie where they lay and torch has changed none: a GPU need not be waited for.
        """
        fitting = self._fitting(layers, dtype)
        asked = [key for key in fitting if key in wanted]
        if steady and all(self._is_as_it_was(key, layers[key]) for key in asked):
            return
        current = fingerprints({key: _weights_of(layers[key]) for key in asked})
        kept = {
            key: products
            for key in fitting
            if (products := self._kept.get(key)) is not None
            and _described_by(layers[key], products.fingerprint)
            and (key not in current or current[key] == products.fingerprint)
        }
        self._kept = kept  # stale products are dropped before new ones take their room
        for key, fingerprint in current.items():
            if key not in kept:
                kept[key] = KeptProducts(self, _layer_products(layers[key].to(dtype)), fingerprint)
            kept[key].places = _places_of(layers[key])

    def _is_as_it_was(self, key: Hashable, layer: Layer) -> bool:
        kept = self._kept.get(key)
        return kept is not None and kept.places is not None and kept.places == _places_of(layer)

    def _fitting(self, layers: Mapping[Any, Layer], dtype: torch.dtype) -> list[Hashable]:
        """The layers whose products fit into the limit together."""
        fitting, total = [], 0
        for key, layer in layers.items():
            size = _bytes(layer, dtype)
            if size and total + size <= self.limit:
                fitting.append(key)
                total += size
        return fitting


def _layer_products(layer: Layer) -> ProductTensors:
    assert isinstance(layer.feed_forward, FeedForward)
    return form_products(_basis(layer), projections(layer.feed_forward))


def _basis(layer: Layer) -> Tensor:
    """B (h, d_head, d) at the input of the feed-forward block."""
    basis = output_basis(layer.attention)
    for step in _between(layer):
        basis = stretch(basis, step)
    return basis


def _between(layer: Layer) -> list[Norm]:
    """The norms between the attention and the feed-forward block."""
    kinds = [type(step) for step in layer.steps]
    first, last = layer.steps.index(layer.attention), kinds.index(FeedForward)
    return [step for step in layer.steps[first:last] if isinstance(step, Norm)]


def _weights_of(layer: Layer) -> list[Tensor]:
    """Every weight that this layer's products and operands are formed from."""
    ff = layer.feed_forward
    assert isinstance(ff, FeedForward)
    gammas = [norm.gamma for norm in _between(layer) if norm.gamma is not None]
    return [layer.attention.output.weight, *gammas, *projections(ff), ff.down.weight]


def _places_of(layer: Layer) -> Places | None:
    """Where the weights of this layer's products lie; None if one lies nowhere."""
    weights = _weights_of(layer)
    if any(isinstance(weight, LateTensor) for weight in weights):
        return None
    return tuple((weight.data_ptr(), weight._version) for weight in weights)


def _described_by(layer: Layer, fingerprint: Fingerprint) -> bool:
    """Whether a fingerprint has the shapes, types and devices of the layer's weights."""
    descriptions = tuple(entry[:-1] for entry in fingerprint)  # type: ignore[index]
    return descriptions == tuple(description(tensor) for tensor in _weights_of(layer))


def _bytes(layer: Layer, dtype: torch.dtype) -> int:
    """Size of a layer's products; 0 where there are none.

    They are for tiles and kernels of a block that all tokens use.
    """
    ff = layer.feed_forward
    if not isinstance(ff, FeedForward) or layer.by_source:
        return 0
    heads = layer.attention.heads
    d_head = layer.attention.output.weight.shape[0] // heads
    elements = head_product_elements(heads, d_head, ff.up.weight.shape[1], len(projections(ff)))
    return elements * dtype.itemsize


# Products of weights that a prepared lens keeps, brought up to date with its model.


def refresh_products(products: ProductStore, lens: Lens, layers: Iterable[int]) -> None:
    """Form the products of these layers that are missing, or whose weights have changed."""

    def refresh() -> None:
        blocks = list(lens.adapter.blocks())
        described = {block: lens.adapter.layer(block) for block in blocks}
        wanted = {blocks[layer] for layer in layers}
        products.refresh(described, wanted, lens.compute_dtype, steady=lens.weights_are_steady)

    alone_with_model(lens.model, refresh)
