"""Running a model as it stands: hooks, evaluation mode and precisions, put back afterwards."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from normlens.after_fork import undoing


class Hooks:
    """Hooks on the calls that one thread makes, all taken off at the end.

    torch notes a hook, and how it is to be called, one after the other. A call by another thread
    may fall in between and run the hook with arguments missing, so its thread is asked before
    anything else.
    """

    def __init__(self) -> None:
        self._thread: int | None = threading.get_ident()
        self._handles: list[Any] = []

    def __enter__(self) -> Hooks:
        self._undoing = undoing(self._remove)
        self._undoing.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._undoing.__exit__(*raised)

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Have `hook(module, args, kwargs)` called before the module runs."""
        listener = self._listener(hook)
        self._handles.append(module.register_forward_pre_hook(listener, with_kwargs=True))

    def behind(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Have `hook(module, args, kwargs, output)` called when the module has run."""
        listener = self._listener(hook)
        self._handles.append(module.register_forward_hook(listener, with_kwargs=True))

    def _listener(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def listen(*call: Any) -> Any:
            return hook(*call) if threading.get_ident() == self._thread else None

        return listen

    def _remove(self) -> None:
        # Ctrl-C inside torch may keep a hook from being noted; it must not act on later calls.
        self._thread = None
        for handle in self._handles:
            handle.remove()


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Dropout off, and every module's mode put back afterwards."""
    training = [module for module in model.modules() if module.training]

    def restore() -> None:
        for module in training:
            module.training = True

    with undoing(restore):
        model.eval()
        yield


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
    with undoing(lambda: model.set_experts_implementation(previous)):
        model.set_experts_implementation("eager")
        yield


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

    with undoing(restore):
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        yield


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
