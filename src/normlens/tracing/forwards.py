"""Other methods for some modules, `forward` above all, for a while and for one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from normlens.after_fork import undoing
from normlens.models.base import Change


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
