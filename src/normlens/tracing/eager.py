"""Eager attention for the calls of one thread, while others run the model as it is set.

Only eager attention returns its weights; under sdpa a model silently returns none. The kind of
attention is read from a configuration, for the mask first and then in every layer, so a pass during
which it changed would apply one kind's mask in another kind's layers, and see what it must not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import nn

from normlens.after_fork import undoing

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
