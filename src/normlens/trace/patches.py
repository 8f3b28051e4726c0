"""Hooks and other changes to a model that one thread sees and that are undone afterwards."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from normlens.models.base import Change
from normlens.trace.locking import undoing

# Running a model as it stands: hooks, evaluation mode and precisions, put back afterwards.


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


# Other methods for some modules, `forward` above all, for a while and for one thread.


def other_forwards(changes: Mapping[nn.Module, Change]) -> AbstractContextManager[None]:
    """While this is open, calls of these modules by this thread use other `forward` functions."""
    return other_methods({(module, "forward"): change for module, change in changes.items()})


@contextmanager
def other_methods(changes: Mapping[tuple[nn.Module, str], Change]) -> Iterator[None]:
    """While this is open, this thread's calls of methods, by module and name, use other functions.

    No class and no weight is touched: the function is an attribute of the module, as some packages
    have put one there already, and what was there before is put back on every way out.
    """
    before = {(module, name): vars(module).get(name) for module, name in changes}
    thread: int | None = threading.get_ident()

    def restore() -> None:
        nonlocal thread
        thread = None
        for (module, name), function in before.items():
            if function is not None:
                vars(module)[name] = function
            else:
                vars(module).pop(name, None)

    def switch(real: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            chosen = other if threading.get_ident() == thread else real
            return chosen(*args, **kwargs)

        return function

    with undoing(restore):
        for (module, name), change in changes.items():
            real: Callable[..., Any] = getattr(module, name)
            vars(module)[name] = switch(real, change(real))
        yield


# Eager attention for the calls of one thread, while others run the model as it is set.
#
# Only eager attention returns its weights; under sdpa a model silently returns none. The kind of
# attention is read from a configuration, for the mask first and then in every layer, so a pass
# during which it changed would apply one kind's mask in another kind's layers, and see what it
# must not.


#: The thread for which a configuration says eager, by the configuration's id.
_threads: dict[int, int] = {}


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """While this is open, the model's configurations say eager to this thread, and to it alone.

    A model whose modules were built for another kind than sdpa stays as it is, and is refused later
    because its layers return no weights.
    """
    can_set = getattr(model, "_can_set_attn_implementation", None)
    settable = can_set is None or can_set()
    # Falcon reads the setting whenever it runs, but has no method that changes it.
    configs = [
        config
        for config in _configs(model)
        if config._attn_implementation not in ("eager", None)
        and (settable or config._attn_implementation == "sdpa")
    ]
    classes: list[Any] = [type(config) for config in configs]

    def restore() -> None:
        for config, kind in zip(configs, classes, strict=True):
            object.__setattr__(config, "__class__", kind)
            _threads.pop(id(config), None)

    with undoing(restore):
        for config, kind in zip(configs, classes, strict=True):
            _threads[id(config)] = threading.get_ident()
            object.__setattr__(config, "__class__", _eager_class(kind))
        yield


def _configs(model: nn.Module) -> list[Any]:
    """Every configuration of a model and its parts that says which kind of attention to run."""
    waiting: list[Any] = [vars(module).get("config") for module in model.modules()]
    found: dict[int, Any] = {}
    while waiting:
        config = waiting.pop()
        is_read = isinstance(getattr(type(config), "_attn_implementation", None), property)
        if is_read and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in config.sub_configs]
    return list(found.values())


@cache
def _eager_class(kind: Any) -> type:
    """A configuration's class that answers one thread differently.

    It has the name of its class, by which transformers finds what belongs to a configuration.
    """

    def implementation(config: Any) -> Any:
        is_here = _threads.get(id(config)) == threading.get_ident()
        return "eager" if is_here else kind._attn_implementation.fget(config)

    def reduced(config: Any, _: Any) -> Any:
        """A copy is of the plain class, and says what the original says to the thread."""
        state = {**vars(config), "_attn_implementation_internal": config._attn_implementation}
        return object.__new__, (kind,), state

    changed = {
        "_attn_implementation": property(implementation, kind._attn_implementation.fset),
        "__reduce_ex__": reduced,
    }
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind)(kind.__name__, (kind,), {**names, **changed})
