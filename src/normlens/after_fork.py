"""What a forked process puts right before anything else.

Only the thread that forks goes on in the child. What other threads held stays locked there, and
what they had changed in a model for a while stays changed, since nobody is left to put it back.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
#: The thread of each change that has not been undone yet, and what undoes it.
_changes: dict[int, tuple[int, Callable[[], None]]] = {}
_numbers = itertools.count()


def process_lock() -> Any:
    """A reentrant lock that no thread of a parent process holds."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


@contextmanager
def undoing(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` on every way out, to its end though Ctrl-C may strike meanwhile.

    A process that another thread forks while this is open calls it at once. It may be called twice.
    """
    number = next(_numbers)
    _changes[number] = threading.get_ident(), undo
    try:
        yield
    finally:
        try:
            undo()
        except KeyboardInterrupt:
            undo()
            raise
        finally:
            _changes.pop(number, None)


def _put_right() -> None:
    """Undo what threads of the parent had changed, and make their locks new."""
    here = threading.get_ident()
    for number, (thread, undo) in reversed(list(_changes.items())):
        if thread != here:
            del _changes[number]
            undo()
    for lock in list(_locks):
        if not lock._is_owned():
            lock._at_fork_reinit()
    if sys.version_info < (3, 12):  # where a cached property locks all objects of its class
        for kept in _cached_properties():
            if not kept.lock._is_owned():
                kept.lock = threading.RLock()


def _cached_properties() -> Iterator[Any]:
    modules = [module for name, module in sys.modules.items() if name.startswith("normlens.")]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    for kind in kinds:
        yield from (value for value in vars(kind).values() if isinstance(value, cached_property))


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_put_right)
