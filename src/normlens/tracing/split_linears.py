"""A float32 model's own products on a GPU, formed as the algebra forms its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from normlens.matmul import is_split, times, times_plus

#: Vectors from which on this takes less time than it costs in Python.
FEWEST = 4096


class split_linears(TorchFunctionMode):
    """Form linear maps of many vectors by `normlens.matmul`, to its 22 digits."""

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

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let functions be called directly: this mode makes each of them pass through Python."""
        if _get_current_function_mode() is not self:  # one that was entered since lies on top
            yield
            return
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()


def are_many(inputs: dict[str, Any]) -> bool:
    """Whether a GPU is given enough tokens for this to be worth its while."""
    return any(
        isinstance(given, Tensor) and given.is_cuda and given.numel() >= FEWEST
        for given in inputs.values()
    )


def _is_large(x: Tensor, weight: Tensor) -> bool:
    return x.numel() >= FEWEST * x.shape[-1] and is_split(x, weight)
