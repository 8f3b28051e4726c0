"""Products of vectors with weights, whose precision may be lower than the vectors'.

On a GPU float32 products of many vectors are formed from float16 numbers (`split_products`), as
exact and several times as fast.

A weight in bfloat16 is exact, so nothing is gained by making it float32. On a GPU the vectors are
split instead, into a bfloat16 number and the bfloat16 number that it misses: two products at the
speed of bfloat16 have 16 digits of the vectors' 24, where one in TF32, which takes as long, has 11.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._pytree import tree_any, tree_map

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
        return wide_product(rounded, weight).unflatten(0, v.shape[:-1])
    high, low = (half.flatten(0, -2) for half in halves(v, scale))
    product = wide_product(high, weight)
    product += wide_product(low, weight)
    return product.unflatten(0, v.shape[:-1])


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """``x W`` of numbers in half precision, (t, d) and (d, e), in float32."""
    if HAS_WIDE_PRODUCTS and x.is_cuda:
        return torch.mm(x, weight, out_dtype=torch.float32)
    return x.float() @ weight.float()


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


def halves(v: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """v, or v ⊙ scale, as a bfloat16 number and what it misses."""
    if has_triton():
        from normlens.gpu import split_products  # Triton is slow to import, and optional

        return split_products.halves(v, scale)
    v = v if scale is None else v * scale
    high = v.bfloat16()
    return high, (v - high).bfloat16()


# A float32 model's own products on a GPU, formed as the algebra forms its own.


#: Vectors from which on this takes less time than it costs in Python.
MANY = 4096


class split_linears(TorchFunctionMode):
    """Form linear maps of many vectors by `times`, to its 22 digits."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.linear and not kwargs:
            x, weight, *bias = args
            if _is_large(x, weight.T):
                if not bias or bias[0] is None:
                    return times(x, weight.T)
                return times_plus(x, weight.T, bias[0])
        elif function is torch.addmm and not kwargs and len(args) == 3:
            bias, x, weight = args
            if bias.dim() == 1 and _is_large(x, weight):
                return times_plus(x, weight, bias)
        return function(*args, **(kwargs or {}))

    def outside(self, consume: Callable[[T], None]) -> Callable[[T], None]:
        """Call `consume` without this mode, which makes each function pass through Python."""

        def consume_outside(traced: T) -> None:
            if _get_current_function_mode() is not self:  # one that was entered since lies on top
                return consume(traced)
            self.__exit__(None, None, None)
            try:
                consume(traced)
            finally:
                self.__enter__()

        return consume_outside


def are_many(inputs: dict[str, Any]) -> bool:
    """Whether a GPU is given enough tokens for `split_linears` to pay."""
    for given in inputs.values():
        if isinstance(given, Tensor) and given.is_cuda and given.numel() >= MANY:
            return True
    return False


def _is_large(x: Tensor, weight: Tensor) -> bool:
    return x.numel() >= MANY * x.shape[-1] and is_split(x, weight)


# Tensors whose values are formed when they are needed.
#
# The weight of a quantised layer, or of one with an adapter, lies nowhere as a matrix. A model's
# layers are described all at once and used one at a time, so a description holds a `LazyTensor`:
# a shape, a dtype, and a recipe. Views of it and sums with it are lazy, too; whatever needs its
# values forms them, and nothing keeps them.


#: What can be told without values.
_DESCRIPTIONS = (
    "shape size dim ndim numel dtype device is_meta element_size itemsize nbytes stride __len__ "
    "is_floating_point is_complex requires_grad layout __hash__"
)
#: What gives a lazy tensor of a lazy tensor: views, and the arithmetic that adapters write.
_STAY_LAZY = (
    "T mT t detach transpose permute flatten unflatten reshape view squeeze unsqueeze __getitem__ "
    "add __add__ __radd__ mul __mul__ __rmul__ sub __sub__ rsub __rsub__ neg"
)


class LazyTensor(Tensor):
    """A tensor on the meta device with a function that forms it."""

    form: Callable[[], Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}

        def applied() -> Any:
            return func(*tree_map(_formed, args), **tree_map(_formed, kwargs))

        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        with torch._C.DisableTorchFunctionSubclass():
            if name in _DESCRIPTIONS.split():
                return func(*args, **kwargs)
            if name in _STAY_LAZY.split() and not tree_any(_decides_values, (args, kwargs)):
                outline = func(*tree_map(_outline, args), **tree_map(_outline, kwargs))
                return lazy_tensor(outline.shape, outline.dtype, applied)
        return applied()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"LazyTensor({tuple(self.shape)}, {self.dtype})"


def lazy_tensor(shape: Sequence[int], dtype: torch.dtype, form: Callable[[], Tensor]) -> LazyTensor:
    """A tensor of this shape and dtype that `form` forms whenever its values are needed.

    What `form` returns may have a higher precision than `dtype`, which is the model's.
    """
    tensor = torch.empty(tuple(shape), dtype=dtype, device="meta").as_subclass(LazyTensor)
    tensor.form = form
    return tensor


def formed(tensor: Tensor) -> Tensor:
    """The tensor with its values in memory: itself, unless it is lazy."""
    return tensor.form() if isinstance(tensor, LazyTensor) else tensor


def _formed(value: Any) -> Any:
    return formed(value) if isinstance(value, Tensor) else value


def _outline(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value


def _decides_values(value: Any) -> bool:
    """Whether an argument's values decide the result's shape, as an index with a mask does."""
    return isinstance(value, Tensor) and not value.is_floating_point()
