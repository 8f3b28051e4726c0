"""Products B_h W_k of weights, formed for a call or kept by a prepared lens.

``U_jh W_k = v_jh (B_h W_k)``, and the bracket depends on weights alone. Forming it costs as much as
multiplying the U of d_head tokens by W_k, so it pays for one long text or for many short ones. The
length of a text decides the first case. The user decides the second (`Lens.prepare`): a number must
not depend on what was computed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.frozen.attention import output_basis
from normlens.frozen.parts import stretch
from normlens.gpu.matmul import LazyTensor, formed, times
from normlens.layers import FeedForward, Layer, Norm
from normlens.trace.locking import exclusive

if TYPE_CHECKING:
    from normlens.gpu.operands import ScaledWeights
    from normlens.lens import Lens

Fingerprint = tuple[Hashable, ...]


# Fingerprints of weights: numbers that depend on every bit, to notice any change.
#
# The bits of a tensor, as 64-bit words x_k, are reduced to ``Σ_k a_k x_k mod 2^64`` with fixed
# random odd a_k. A change of one word always changes the sum; a change of several leaves it as it
# was with a probability near 2^-64. Versions and addresses of tensors would not do: weights that
# are edited through ``.data`` keep both.


ROW = 1 << 15  # words that are multiplied by the same factors
SLAB = 1 << 7  # rows at a time, so that the products stay small beside the weights


def fingerprints(weights: Mapping[Hashable, Sequence[Tensor]]) -> dict[Hashable, Fingerprint]:
    """Fingerprints of some tensors by key: shape, strides, dtype, device and content of each.

    A device is waited for only once.
    """
    sums = [_content(formed(tensor)) for group in weights.values() for tensor in group]
    # Layers may lie on several devices.
    numbers = iter(torch.stack([each.to(sums[0].device) for each in sums]).tolist() if sums else ())
    return {
        key: tuple((t.shape, t.stride(), t.dtype, t.device, next(numbers)) for t in group)
        for key, group in weights.items()
    }


def _content(tensor: Tensor) -> Tensor:
    """``Σ_k a_k x_k``, a 64-bit number that is still on the tensor's device."""
    data = tensor.detach()
    if data.dim() == 2 and not data.is_contiguous():
        data = data.T  # a weight is often a transposed view; in memory order it needs no copy
    data = data.contiguous().view(-1).view(torch.uint8)
    sums = []
    for slab in data.split(8 * ROW * SLAB):
        words = F.pad(slab, (0, -len(slab) % (8 * ROW))).view(torch.int64).view(-1, ROW)
        sums.append((words * _factors(ROW, data.device)).sum(1))
    joined = torch.cat(sums)
    # Rows have factors that differ from those of words, or an exchange of rows would go unnoticed.
    return (joined * _factors(len(joined), data.device, seed=1)).sum()


@lru_cache(maxsize=256)
def _factors(count: int, device: torch.device, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    return (2 * drawn + 1).to(device)


# Kept from call to call -------------------------------------------------------------------------


class KeptProducts:
    """The products of one layer's weights, with a fingerprint of those weights."""

    def __init__(self, store: ProductStore, layer: Layer, fingerprint: Fingerprint):
        basis, ff = output_basis(layer.attention), layer.feed_forward
        assert isinstance(ff, FeedForward)
        for norm in _norms_between(layer):
            basis = stretch(basis, norm)
        self.tensors = tuple(times(basis, linear.weight) for linear in ff.inputs)
        self.fingerprint = fingerprint
        self.places: object = None  # of the weights when their content was last compared
        self._store = store
        self._operands: dict[Hashable, ScaledWeights] = {}  # of the kernels

    @property
    def size(self) -> int:
        """Bytes held."""
        operands = sum(operand.nbytes for operand in self._operands.values())
        return operands + sum(tensor.nbytes for tensor in self.tensors)

    def operand(self, name: Hashable, make: Callable[[], ScaledWeights]) -> ScaledWeights:
        """The operand called `name`: kept, or formed by `make` and kept if the store has room."""
        if name in self._operands:
            return self._operands[name]
        operand = make()
        if self._store.size + operand.nbytes <= self._store.limit:
            self._operands[name] = operand
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
        weights: dict[Hashable, list[Tensor]] = {}  # of the layers that fit into the limit together
        total = 0
        for key, layer in layers.items():
            ff, output = layer.feed_forward, layer.attention.output.weight
            if not isinstance(ff, FeedForward) or layer.by_source:
                continue  # products are for tiles and kernels of a block that all tokens use
            size = len(ff.inputs) * output.shape[0] * ff.up.weight.shape[1] * dtype.itemsize
            if total + size <= self.limit:
                total += size
                gammas = [norm.gamma for norm in _norms_between(layer) if norm.gamma is not None]
                first = [linear.weight for linear in ff.inputs]
                weights[key] = [output, *gammas, *first, ff.down.weight]
        asked = {key: weights[key] for key in weights if key in wanted}
        places = {key: _places_of(tensors) for key, tensors in asked.items()}
        known = {key: kept.places for key, kept in self._kept.items() if kept.places is not None}
        if steady and places.items() <= known.items():
            return
        current = fingerprints(asked)
        # Stale products are dropped before new ones take their room.
        self._kept = {
            key: kept
            for key, kept in self._kept.items()
            if key in weights and current.get(key, kept.fingerprint) == kept.fingerprint
        }
        for key, fingerprint in current.items():
            if key not in self._kept:
                self._kept[key] = KeptProducts(self, layers[key].to(dtype), fingerprint)
            self._kept[key].places = places[key]


def _norms_between(layer: Layer) -> list[Norm]:
    """The norms between the attention and the feed-forward block."""
    assert layer.feed_forward is not None
    first, last = map(layer.steps.index, (layer.attention, layer.feed_forward))
    return [step for step in layer.steps[first:last] if isinstance(step, Norm)]


def _places_of(weights: Sequence[Tensor]) -> tuple[tuple[int, int], ...] | None:
    """Addresses and versions of weights; None if one lies nowhere."""
    if any(isinstance(weight, LazyTensor) for weight in weights):
        return None
    return tuple((weight.data_ptr(), weight._version) for weight in weights)


def refresh_products(products: ProductStore, lens: Lens, layers: Iterable[int]) -> None:
    """Form the products of these layers that are missing, or whose weights have changed."""

    def refresh() -> None:
        blocks = list(lens.adapter.blocks())
        described = {block: lens.adapter.layer(block) for block in blocks}
        wanted = {blocks[layer] for layer in layers}
        products.refresh(described, wanted, lens.compute_dtype, steady=lens.weights_are_steady)

    exclusive(lens.model, refresh)
