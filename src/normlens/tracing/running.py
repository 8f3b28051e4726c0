"""Running a model as it stands: hooks, evaluation mode and eager attention, put back afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Hooks:
    """Hooks that are all taken off at the end."""

    def __init__(self) -> None:
        self.handles: list[Any] = []

    def __enter__(self) -> Hooks:
        return self

    def __exit__(self, *_: object) -> None:
        undo(self._remove)

    def _remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def undo(change: Callable[[], None]) -> None:
    """Undo a change to the end, though Ctrl-C may strike meanwhile."""
    try:
        change()
    except KeyboardInterrupt:
        change()
        raise


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Dropout off, and every module's mode put back afterwards."""
    training = [module for module in model.modules() if module.training]

    def restore() -> None:
        for module in training:
            module.training = True

    try:
        model.eval()
        yield
    finally:
        undo(restore)


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """Only eager attention returns its weights; under sdpa the model silently returns none."""
    previous = getattr(model.config, "_attn_implementation", "eager")
    if previous in ("eager", None) or not hasattr(model, "set_attn_implementation"):
        yield
        return
    try:
        _set_attention(model, previous, "eager")
        yield
    finally:
        undo(lambda: _set_attention(model, "eager", previous))


def _set_attention(model: Any, before: str, implementation: str) -> None:
    can_set = getattr(model, "_can_set_attn_implementation", None)
    settable = can_set is None or can_set()
    if settable:
        model.set_attn_implementation(implementation)
    if settable or {before, implementation} == {"eager", "sdpa"}:
        # Falcon reads the setting whenever it runs, but has no method that changes it; the method
        # of some versions of T5 leaves the configurations of its stacks as they are.
        for module in model.modules():
            config = vars(module).get("config")
            if getattr(config, "_attn_implementation", None) == before:
                config._attn_implementation = implementation


@contextmanager
def plain_experts(model: Any) -> Iterator[None]:
    """Let experts run one by one where the product of all of them together has no such precision.

    transformers takes PyTorch's grouped product by itself, which has none for float64.
    """
    previous = getattr(model.config, "_experts_implementation", None)
    double = any(parameter.dtype == torch.float64 for parameter in model.parameters())
    if not double or previous in ("eager", None):
        yield
        return
    try:
        model.set_experts_implementation("eager")
        yield
    finally:
        undo(lambda: model.set_experts_implementation(previous))


@contextmanager
def whole_float32() -> Iterator[None]:
    """Products and convolutions in float32, not in TF32, which cuDNN takes if nobody says no."""
    if not torch.cuda.is_available():
        yield
        return
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def restore() -> None:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions

    try:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        yield
    finally:
        undo(restore)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run compiled modules as they were written: compiled code may pass by the hooks."""
    compiled = any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
    if not compiled:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def plain_options(model: nn.Module) -> dict[str, Any]:
    """Switch the key–value cache off where there is one: it would keep every layer's keys.

    A model with a head may hand the option on to its body without naming it.
    """
    own = inspect.signature(model.forward).parameters
    hands_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    body = getattr(model, "base_model", model)
    named = {*own, *(inspect.signature(body.forward).parameters if hands_on else ())}
    return {"use_cache": False} if "use_cache" in named else {}
