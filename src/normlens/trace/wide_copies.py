"""Copies of parts of a model in float32, run on what the model itself has read.

A copy is taken of one part at a time and is gone after its run; the model is not touched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normlens.errors import reason_of
from normlens.models.base import Adapter
from normlens.options import DTYPES
from normlens.trace.patches import plain_options
from normlens.trace.recorder import Call, LayerTrace
from normlens.trace.run import run_again

T = TypeVar("T")
A = TypeVar("A", bound=Adapter)
_DTYPES = tuple(getattr(torch, name) for name in DTYPES)


class NotInFloat32(Exception):
    """A part of a model that has no copy in float32, or one that does not run."""


@contextmanager
def _reasons_told() -> Iterator[None]:
    """Raise `NotInFloat32` for whatever a module of any package raises when copied or run."""
    try:
        yield
    except Exception as error:
        raise NotInFloat32(reason_of(error)) from error


@_reasons_told()
def block_in_float32(adapter: Adapter, index: int, block: nn.Module, call: Call) -> LayerTrace:
    """Call a block's copy in float32 as the block itself was called, and trace it.

    For use inside `normlens.trace.run.reading`.
    """
    return run_again(adapter, index, _copied(adapter, block, {}), _wide(call))


@_reasons_told()
def end_in_float32(
    adapter: A, model: nn.Module, inputs: dict[str, Any], returned: Mapping[nn.Module, Any]
) -> tuple[Any, A]:
    """What a copy of `model` in float32 returns whose blocks give what is said in `returned`.

    So nothing but what stands before and behind the blocks is copied and run. The second result is
    an adapter of the copy.
    """
    if adapter.stand_ins():
        raise NotInFloat32(f"{type(model).__name__} calls its blocks in a way of its own")
    twins: dict[int, Any] = {
        id(block): _Returning(block, _wide(output)) for block, output in returned.items()
    }
    other = copy.copy(adapter)
    other.whole = _copied(adapter, model, twins)
    other.model = twins[id(adapter.model)]
    return other.whole(**_wide(inputs), **plain_options(model)), other


def _copied(adapter: Adapter, module: Any, twins: dict[int, Any]) -> Any:
    """A copy in float32. `twins` are the copies of its parts by id; some may be there already."""
    twin = copy.deepcopy(module, twins)
    for tensor in chain(twin.parameters(), twin.buffers()):
        whole_numbers = not tensor.is_floating_point() and not isinstance(tensor, nn.Parameter)
        plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta
        if not plain or not (whole_numbers or tensor.dtype in _DTYPES):
            raise NotInFloat32("its weights are quantised or offloaded")
    for (part, name), change in adapter.stand_ins().items():
        if id(part) in twins:  # the function that was copied calls the original
            vars(twins[id(part)]).pop(name, None)
            vars(twins[id(part)])[name] = change(getattr(twins[id(part)], name))
    return nn.Module.float(twin)  # that of transformers refuses what once was quantised


def _wide(values: T) -> T:
    """The same with every tensor of numbers in float32."""

    def wide(value: Any) -> Any:
        is_real = isinstance(value, Tensor) and value.is_floating_point()
        return value.float() if is_real else value

    return tree_map(wide, values)


class _Returning(nn.Module):
    """Stands for a block and returns what is known already; it has the block's attributes."""

    def __init__(self, block: nn.Module, output: Any):
        super().__init__()
        vars(self).update(block=block, output=output)  # not registered: it is not to be converted

    def forward(self, *_: Any, **__: Any) -> Any:
        return vars(self)["output"]

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["block"], name)
