"""Products of vectors with weights, whose precision may be lower than the vectors'.

On a GPU float32 products of many vectors are formed from float16 numbers (`split_products`), as
exact and several times as fast.

A weight in bfloat16 is exact, so nothing is gained by making it float32. On a GPU the vectors are
split instead, into a bfloat16 number and the bfloat16 number that it misses: two products at the
speed of bfloat16 have 16 digits of the vectors' 24, where one in TF32, which takes as long, has 11.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from normlens.gpu.sizes import HAS_WIDE_PRODUCTS, has_triton, kernels_run_on

T = TypeVar("T")

#: Vectors from which on splitting a weight pays.
_FEWEST = 256
_FEWEST_BY_HEAD = 64  # whose sums are short
#: Terms of a split product's sums come in such numbers: so a GPU copies its operands.
ALIGNED = 8
#: The smallest side of a weight for whose product a whole tile is not wasted.
_NARROWEST = 64
#: Parts of a sum that a GPU forms side by side.
_PIECES = 16


class _Kept(threading.local):
    """The operands of this thread that are kept for a while, with the weights they stand for."""

    operands: dict[Any, tuple[Tensor, Any]] | None = None


_kept = _Kept()


class _Rounding(threading.local):
    """Whether this thread's vectors lose, beside weights in bfloat16, what bfloat16 cannot hold."""

    once = False


_rounding = _Rounding()


@contextmanager
def rounded_once() -> Iterator[None]:
    """Round vectors beside weights in bfloat16: half the work of splitting, 8 digits of 16."""
    before, _rounding.once = _rounding.once, True
    try:
        yield
    finally:
        _rounding.once = before


@contextmanager
def operands_kept() -> Iterator[None]:
    """Split each weight once for all products inside; nobody may change a weight there."""
    before, _kept.operands = _kept.operands, {}
    try:
        yield
    finally:
        _kept.operands = before


def is_rounded_once() -> bool:
    """Whether this thread is inside `rounded_once`."""
    return _rounding.once


def forget_operands() -> None:
    """Let go of the operands that are kept: what follows needs the memory more."""
    if _kept.operands is not None:
        _kept.operands.clear()


def splits(weights: Tensor) -> bool:
    """Whether products with these weights are split."""
    return HAS_WIDE_PRODUCTS and weights.device.type == "cuda" and weights.dtype == torch.bfloat16


def is_split(v: Tensor, weight: Tensor, vectors: int | None = None) -> bool:
    """Whether the product of these float32 numbers is formed from float16 numbers.

    The vectors are those of v, or so many with it among them.
    """
    if not v.is_cuda or weight.dim() != 2 or v.dtype != weight.dtype:
        return False
    inner, columns = weight.shape
    if inner % ALIGNED or min(inner, columns) < _NARROWEST:
        return False
    count = v.numel() // inner if vectors is None else vectors
    return count >= _FEWEST and kernels_run_on(v.device, v.dtype)


def times(v: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """``v W``, or ``(v ⊙ scale) W``, of vectors (…, d) and a weight (d, e).

    The weight has the same precision, or is bfloat16; `scale` has the last axes of v.
    """
    if v.dtype == weight.dtype:
        v = v if scale is None else v * scale
        return _split(v, weight) if is_split(v, weight) else v @ weight
    if is_rounded_once():
        rounded = (v if scale is None else v * scale).bfloat16().flatten(0, -2)
        return torch.mm(rounded, weight, out_dtype=v.dtype).unflatten(0, v.shape[:-1])
    high, low = (half.flatten(0, -2) for half in _halves(v, scale))
    product = torch.mm(high, weight, out_dtype=v.dtype)
    product += torch.mm(low, weight, out_dtype=v.dtype)
    return product.unflatten(0, v.shape[:-1])


def times_plus(v: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``v W + b``."""
    if v.dtype != weight.dtype:
        return times(v, weight) + bias
    if is_split(v, weight):
        return _split(v, weight, bias)
    if v.is_cuda:  # cuBLAS takes slower kernels for few vectors with a bias
        return (v @ weight).add_(bias)
    return torch.addmm(bias, v.flatten(0, -2), weight).unflatten(0, v.shape[:-1])


def by_head(v: Tensor, weights: Tensor) -> Tensor:
    """``v_h W_h`` of each head's vectors (…, h, e) and weights (h, e, d)."""
    heads, inner, columns = weights.shape
    large = v.numel() >= _FEWEST_BY_HEAD * heads * inner and columns >= _NARROWEST
    fits = inner % ALIGNED == 0 and v.dtype == weights.dtype
    if v.is_cuda and large and fits and kernels_run_on(v.device, v.dtype):
        return split_by_head(v, weights)
    return torch.einsum("...he,hed->...hd", v, weights)


def split_by_head(v: Tensor, weights: Tensor) -> Tensor:
    """The same from float16 numbers."""
    from normlens.gpu.split_products import SplitRows, multiply  # Triton is slow to import

    heads, inner, columns = weights.shape

    def split() -> SplitRows:
        return SplitRows.of(weights.transpose(1, 2).reshape(heads * columns, inner))

    rows = _kept_operand(weights, split)
    return multiply(v.reshape(-1, heads * inner), rows, heads=heads).view(*v.shape[:-1], columns)


def rough_product(v: Tensor, weight: Tensor) -> Tensor:
    """``v W`` for operands of the kernels that have 11 digits, in float32."""
    return _split(v, weight, digits=11) if is_split(v, weight) else v @ weight


def matmul_rows(v: Tensor, weight: Tensor, among: int) -> Tensor:
    """``v W`` of a few vectors, where W is multiplied by `among` others as well.

    On a GPU they share the split weight. Where it is not split, the sum is formed in pieces, or
    most of the GPU would wait for a few programs.
    """
    rows, inner = v.shape
    if _kept.operands is not None and is_split(v, weight, among):
        return _split(v, weight)
    if not v.is_cuda or inner % _PIECES:
        return v @ weight
    pieces = v.view(rows, _PIECES, -1).transpose(0, 1)  # (piece, row, in)
    return (pieces @ weight.unflatten(0, (_PIECES, -1))).sum(0)


def weighted(alpha: Tensor, v: Tensor) -> Tensor:
    """``Σ_j α_ij v_j`` of α (b, h, i, j) and vectors (…, b, h, j, e), of the same precisions."""
    if v.dtype == alpha.dtype:
        return alpha @ v
    if v.dim() > 4:
        return torch.stack([weighted(alpha, each) for each in v])
    high, low = _halves(v.flatten(0, 1))
    flat = alpha.flatten(0, 1)
    product = torch.bmm(flat, high, out_dtype=v.dtype)
    product += torch.bmm(flat, low, out_dtype=v.dtype)
    return product.unflatten(0, v.shape[:2])


def _split(v: Tensor, weight: Tensor, bias: Tensor | None = None, digits: int = 22) -> Tensor:
    from normlens.gpu.split_products import SplitRows, multiply  # Triton is slow to import

    rows = _kept_operand(weight, lambda: SplitRows.of(weight.T))
    made = multiply(v.flatten(0, -2), rows, bias, digits=digits)
    return made.unflatten(0, v.shape[:-1])


def _kept_operand(weight: Tensor, make: Callable[[], T]) -> T:
    """The operand that stands for a weight: kept, or made."""
    kept = {} if _kept.operands is None else _kept.operands
    place = weight.data_ptr(), weight.shape, weight.stride()
    if place not in kept:
        kept[place] = weight, make()
    operand: T = kept[place][1]
    return operand


def _halves(v: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """v, or v ⊙ scale, as a bfloat16 number and what it misses."""
    if has_triton():
        from normlens.gpu.split_products import halves  # Triton is slow to import, and optional

        return halves(v, scale)
    v = v if scale is None else v * scale
    high = v.bfloat16()
    return high, (v - high).bfloat16()
