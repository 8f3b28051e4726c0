"""Other `forward` functions for some modules, for a while and for one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from normlens.tracing.running import undo

#: Takes the module's forward function and returns the one to use instead.
Change = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def other_forwards(changes: Mapping[nn.Module, Change]) -> Iterator[None]:
    """While this is open, calls of these modules by this thread use other `forward` functions.

    No class and no weight is touched: the function is an attribute of the module, as some packages
    have put one there already, and what was there before is put back on every way out.
    """
    before = {module: vars(module).get("forward") for module in changes}
    thread: int | None = threading.get_ident()

    def restore() -> None:
        for module, forward in before.items():
            if forward is not None:
                vars(module)["forward"] = forward
            else:
                vars(module).pop("forward", None)

    def switch(real: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            chosen = other if threading.get_ident() == thread else real
            return chosen(*args, **kwargs)

        return forward

    try:
        for module, change in changes.items():
            real: Callable[..., Any] = module.forward
            vars(module)["forward"] = switch(real, change(real))
        yield
    finally:
        thread = None
        undo(restore)
