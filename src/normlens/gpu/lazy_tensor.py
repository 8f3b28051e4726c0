"""Tensors whose values are formed when they are needed.

The weight of a quantised layer, or of one with an adapter, lies nowhere as a matrix. A model's
layers are described all at once and used one at a time, so a description holds a `LazyTensor`: a
shape, a dtype, and a recipe. Views of it and sums with it are lazy, too; whatever needs its values
forms them, and nothing keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_any, tree_map

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
