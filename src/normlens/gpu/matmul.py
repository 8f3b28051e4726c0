"""Products of vectors with weights of any precision, lazy tensors, and constants on a device."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_any, tree_map

# Tensors whose values are formed when they are needed.
#
# The weight of a quantised layer, or of one with an adapter, lies nowhere as a matrix. A model's
# layers are described all at once and used one at a time, so a description holds a `LateTensor`: a
# shape, a dtype, and a recipe. Views of it and sums with it are late, too; whatever needs its
# values forms them, and nothing keeps them.


#: What can be told without values.
_DESCRIPTIONS = frozenset(
    [
        "shape",
        "size",
        "dim",
        "ndim",
        "numel",
        "dtype",
        "device",
        "is_meta",
        "element_size",
        "itemsize",
        "nbytes",
        "stride",
        "__len__",
        "is_floating_point",
        "is_complex",
        "requires_grad",
        "layout",
        "__hash__",
    ]
)
#: What gives a late tensor of a late tensor: views, and the arithmetic that adapters write.
_STAY_LATE = frozenset(
    [
        "T",
        "mT",
        "t",
        "detach",
        "transpose",
        "permute",
        "flatten",
        "unflatten",
        "reshape",
        "view",
        "squeeze",
        "unsqueeze",
        "__getitem__",
        "add",
        "__add__",
        "__radd__",
        "mul",
        "__mul__",
        "__rmul__",
        "sub",
        "__sub__",
        "rsub",
        "__rsub__",
        "neg",
    ]
)


class LateTensor(Tensor):
    """A tensor on the meta device with a function that forms it."""

    form: Callable[[], Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        with torch._C.DisableTorchFunctionSubclass():
            if name in _DESCRIPTIONS:
                return func(*args, **kwargs)
            if name in _STAY_LATE and not tree_any(_decides_values, (args, kwargs)):
                outline = func(*tree_map(_outline, args), **tree_map(_outline, kwargs))
                return late(outline.shape, outline.dtype, lambda: _applied(func, args, kwargs))
        return _applied(func, args, kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"LateTensor({tuple(self.shape)}, {self.dtype})"


def late(shape: Sequence[int], dtype: torch.dtype, form: Callable[[], Tensor]) -> LateTensor:
    """A tensor of this shape and dtype that `form` forms whenever its values are needed.

    What `form` returns may have a higher precision than `dtype`, which is the model's.
    """
    tensor = torch.empty(tuple(shape), dtype=dtype, device="meta").as_subclass(LateTensor)
    tensor.form = form
    return tensor


def formed(tensor: Tensor) -> Tensor:
    """The tensor with its values in memory: itself, unless it is late."""
    return tensor.form() if isinstance(tensor, LateTensor) else tensor


def _applied(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*tree_map(_formed, args), **tree_map(_formed, kwargs))


def _formed(value: Any) -> Any:
    return formed(value) if isinstance(value, Tensor) else value


def _outline(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value


def _decides_values(value: Any) -> bool:
    """Whether an argument's values decide the result's shape, as an index with a mask does."""
    return isinstance(value, Tensor) and not value.is_floating_point()


# Products of vectors with weights, whose precision may be lower than the vectors'.
#
# On a GPU float32 products of many vectors are formed from float16 numbers (`split_products`), as
# exact and several times as fast.
#
# A weight in bfloat16 is exact, so nothing is gained by making it float32. On a GPU the vectors
# are split instead, into a bfloat16 number and the bfloat16 number that it misses: two products at
# the speed of bfloat16 have 16 digits of the vectors' 24, where one in TF32, which takes as long,
# has 11.


T = TypeVar("T")

#: Products of bfloat16 with a float32 result came with this version.
_AVAILABLE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
_HAS_TRITON = importlib.util.find_spec("triton") is not None
#: Vectors from which on splitting a weight pays.
_FEWEST = 256
_FEWEST_BY_HEAD = 64  # whose sums are short
#: Terms of a split product's sums come in such numbers: so a GPU copies its operands.
ALIGNED = 8
#: The smallest side of a weight for whose product a whole tile is not wasted.
_NARROWEST = 64
#: Parts of a sum that a GPU forms side by side.
_PIECES = 16
_OLDEST = (8, 0)  # capability of the GPUs on which float16 is fast enough


class _Kept(threading.local):
    """The operands of this thread that are kept for a while, with the weights they stand for."""

    operands: dict[Any, tuple[Tensor, Any]] | None = None


_kept = _Kept()


@contextmanager
def operands_kept() -> Iterator[None]:
    """Split each weight once for all products inside; nobody may change a weight there."""
    before, _kept.operands = _kept.operands, {}
    try:
        yield
    finally:
        _kept.operands = before


def forget_operands() -> None:
    """Let go of the operands that are kept: what follows needs the memory more."""
    if _kept.operands is not None:
        _kept.operands.clear()


def splits(weights: Tensor) -> bool:
    """Whether products with these weights are split."""
    return _AVAILABLE and weights.device.type == "cuda" and weights.dtype == torch.bfloat16


def times(v: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """``v W``, or ``(v ⊙ scale) W``, of vectors (…, d) and a weight (d, e).

    The weight has the same precision, or is bfloat16; `scale` has the last axes of v.
    """
    if v.dtype == weight.dtype:
        v = v if scale is None else v * scale
        return _split(v, weight) if is_split(v, weight) else v @ weight
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
    if not _is_split_by_head(v, weights):
        return torch.einsum("...he,hed->...hd", v, weights)
    from normlens.gpu.split_products import SplitRows, multiply  # Triton is slow to import

    def split() -> SplitRows:
        return SplitRows.of(weights.transpose(1, 2).reshape(heads * columns, inner))

    rows = _kept_operand(weights, split)
    return multiply(v.reshape(-1, heads * inner), rows, heads=heads).view(*v.shape[:-1], columns)


def _is_split_by_head(v: Tensor, weights: Tensor) -> bool:
    heads, inner, columns = weights.shape
    if inner % ALIGNED or columns < _NARROWEST or v.numel() < _FEWEST_BY_HEAD * heads * inner:
        return False
    return _kernels_take(v, weights)


def rough_product(v: Tensor, weight: Tensor) -> Tensor:
    """``v W`` for operands of the kernels that have 11 digits, in float32."""
    return _split(v, weight, digits=11) if is_split(v, weight) else v @ weight


def is_split(v: Tensor, weight: Tensor) -> bool:
    """Whether the product of these float32 numbers is formed from float16 numbers."""
    return _is_split(v, weight, v.numel() // max(1, v.shape[-1]))


def _is_split(v: Tensor, weight: Tensor, vectors: int) -> bool:
    if not _kernels_take(v, weight):
        return False
    inner, columns = weight.shape[-2:]
    if weight.dim() != 2 or inner % ALIGNED or min(inner, columns) < _NARROWEST:
        return False
    return vectors >= _FEWEST


def _kernels_take(v: Tensor, weight: Tensor) -> bool:
    if not (v.is_cuda and _HAS_TRITON and v.dtype == weight.dtype == torch.float32):
        return False
    return _is_recent(v.device)


@cache
def _is_recent(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= _OLDEST


def few_times(v: Tensor, weight: Tensor, among: int) -> Tensor:
    """``v W`` of a few vectors, where W is multiplied by `among` others as well.

    On a GPU they share the split weight. Where it is not split, the sum is formed in pieces, or
    most of the GPU would wait for a few programs.
    """
    rows, inner = v.shape
    if _kept.operands is not None and _is_split(v, weight, among):
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


def _halves(v: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """v, or v ⊙ scale, as a bfloat16 number and what it misses."""
    if _HAS_TRITON:
        from normlens.gpu.split_products import halves  # Triton is slow to import, and optional

        return halves(v, scale)
    v = v if scale is None else v * scale
    high = v.bfloat16()
    return high, (v - high).bfloat16()


# What kernels need of their device: to be the current one, and small numbers, put there once.
#
# Copying numbers there for each layer would cost more than the layer's smaller kernels. A recorded
# call (`normlens.pipeline.recordings`) reads them again whenever it is replayed, so it holds them.


_held: ContextVar[list[Tensor] | None] = ContextVar("held", default=None)


def on_device(
    numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """These numbers as a tensor on `device`; nobody may write into it."""
    tensor = _made(numbers, device, dtype)
    if (held := _held.get()) is not None:
        held.append(tensor)
    return tensor


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one for a while: kernels and events go to that one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@lru_cache(maxsize=256)
def _made(numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    # Making the tensor on the device itself would wait for the device.
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


@contextmanager
def holding() -> Iterator[list[Tensor]]:
    """Collect every constant that is used inside, which keeps it in memory."""
    held: list[Tensor] = []
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)


# Copies in memory that a GPU reads and writes without the CPU's help.


def pinned_copy(tensor: Tensor) -> Tensor:
    """A copy of a GPU's tensor in pinned memory, there when the stream has come so far.

    Tensors of the CPU are returned as they are.
    """
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a CPU's tensor on `device`; a GPU is not waited for."""
    if device.type == "cuda" and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
